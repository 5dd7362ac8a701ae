"""Marian's network in NumPy, written from its formulas: float64, one source at a time.

Names of tensors are Marian's; shapes are (positions, width), and (heads, positions, width) within
an attention.
"""

import numpy as np


class Oracle:
    def __init__(self, options, tensors):
        self.options = options
        self.tensors = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
        self.before = "n" in options["transformer-preprocess"]

    def norm(self, x, place, ending=""):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
        scale, bias = (self.tensors[f"{place}_ln_{part}{ending}"] for part in ("scale", "bias"))
        return x * scale + bias

    def sublayer(self, x, place, function):
        """norm(x + f(x)), or x + f(norm(x))"""
        if self.before:
            return x + function(self.norm(x, place, "_pre"))
        return self.norm(x + function(x), place)

    def affine(self, x, place, letter):
        return x @ self.tensors[f"{place}_W{letter}"] + self.tensors[f"{place}_b{letter}"]

    def attend(self, x, keys, place, causal=False):
        """Return the output, and the weights (heads, queries, keys)."""
        heads = self.options["transformer-heads"]

        def split(y):
            return y.reshape(len(y), heads, -1).transpose(1, 0, 2)

        q = split(self.affine(x, place, "q"))
        k, v = (split(self.affine(keys, place, letter)) for letter in "kv")
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        if causal:
            scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = (weights @ v).transpose(1, 0, 2).reshape(len(x), -1)
        return self.affine(mixed, place, "o"), weights

    def feed_forward(self, x, place):
        hidden = self.affine(x, place, "1")
        match self.options["transformer-ffn-activation"]:
            case "relu":
                hidden = np.maximum(hidden, 0)
            case "swish":
                hidden = hidden / (1 + np.exp(-hidden))
            case "gelu":  # of versions up to 1.12.0
                hidden = hidden / (1 + np.exp(-1.702 * hidden))
        return self.affine(hidden, place, "2")

    def recur(self, x, place):
        """relu(c), where c = f c + (1 - f) W x"""
        forget = 1 / (1 + np.exp(-self.affine(x, place, "f")))
        values, state, states = x @ self.tensors[f"{place}_W"], 0.0, []
        for f, value in zip(forget, values, strict=True):
            state = f * state + (1 - f) * value
            states.append(np.maximum(state, 0))
        return np.stack(states)

    def embed(self, vectors, side):
        width, half = self.options["dim-emb"], self.options["dim-emb"] // 2
        rates = np.exp(-np.arange(half) * np.log(1e4) / (half - 1))
        angles = np.arange(len(vectors))[:, None] * rates
        x = vectors * np.sqrt(width) + np.concatenate([np.sin(angles), np.cos(angles)], 1)
        with_norm = "n" in self.options["transformer-postprocess-emb"]
        return self.norm(x, f"{side}_emb", "_pre") if with_norm else x

    def top(self, x, side):
        with_norm = "n" in self.options["transformer-postprocess-top"]
        return self.norm(x, f"{side}_top") if with_norm else x

    def matrix(self, side):
        return self.tensors.get("Wemb", self.tensors.get(f"{side}_Wemb"))

    def encode(self, source):
        x = self.embed(self.matrix("encoder")[source], "encoder")
        for layer in range(1, self.options["enc-depth"] + 1):
            place = f"encoder_l{layer}"
            x = self.sublayer(
                x, f"{place}_self_Wo", lambda y, p=place: self.attend(y, y, f"{p}_self")[0]
            )
            x = self.sublayer(
                x, f"{place}_ffn_ffn", lambda y, p=place: self.feed_forward(y, f"{p}_ffn")
            )
        return self.top(x, "encoder")

    def own_layer(self, x, place):
        """Read the target so far."""
        if self.options["transformer-decoder-autoreg"] == "rnn":
            name = f"{place}_rnn" if self.before else f"{place}_rnn_ffn"
            return self.sublayer(x, name, lambda y: self.recur(y, f"{place}_rnn"))
        return self.sublayer(
            x, f"{place}_self_Wo", lambda y: self.attend(y, y, f"{place}_self", causal=True)[0]
        )

    def decode(self, memory, target):
        """Return the log-probs (T + 1, V) after no token, after the first, ..., and the weights of
        cross-attention (layers, heads, T + 1, S)."""
        rows = self.matrix("decoder")[np.array(target, int)]
        x = self.embed(np.vstack([np.zeros((1, self.options["dim-emb"])), rows]), "decoder")
        found = []

        def cross(y, place):
            output, weights = self.attend(y, memory, f"{place}_context")
            found.append(weights)
            return output

        for layer in range(1, self.options["dec-depth"] + 1):
            place = f"decoder_l{layer}"
            x = self.own_layer(x, place)
            x = self.sublayer(x, f"{place}_context_Wo", lambda y, p=place: cross(y, p))
            x = self.sublayer(
                x, f"{place}_ffn_ffn", lambda y, p=place: self.feed_forward(y, f"{p}_ffn")
            )
        x = self.top(x, "decoder")
        tied = self.options["tied-embeddings-all"] or self.options["tied-embeddings"]
        output = self.matrix("decoder").T if tied else self.tensors["decoder_ff_logit_out_W"]
        logits = x @ output + self.tensors.get("decoder_ff_logit_out_b", 0.0)
        logits = logits - logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True)), np.stack(found)

    def search(self, source, beams, longest, banned=(1,), eos_id=0):
        """Return tokens and summed log-probs of hypotheses, best mean log-prob first: the search of
        `model/search.py`'s kind, over whole targets and without a cache. It stops at `beams` ends;
        at the longest length live beams count, too, as Hugging Face has it.
        """
        memory, live, ended = self.encode(source), [([], 0.0)], []
        for length in range(1, longest + 1):
            found = []
            for tokens, total in live:
                log_probs = self.decode(memory, tokens)[0][-1].copy()
                log_probs[list(banned)] = -np.inf
                best = np.argsort(-log_probs)[: 2 * beams]
                found += [([*tokens, int(i)], total + log_probs[i]) for i in best]
            found = sorted(found, key=lambda each: -each[1])[: 2 * beams]
            ended += [each for each in found[:beams] if each[0][-1] == eos_id]
            live = [each for each in found if each[0][-1] != eos_id][:beams]
            if length == longest:
                ended += live
            if len(ended) >= beams:
                break
        ranked = sorted(ended, key=lambda each: -each[1] / len(each[0]))
        return ranked[:beams]
