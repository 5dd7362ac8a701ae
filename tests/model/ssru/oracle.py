"""An encoder-decoder with an SSRU in NumPy alone, from the weights of a bundle.

It decodes step by step, with one state for each beam, and shares no code with the network.

Axes: S source length, T target length, H heads, M d_model, V vocabulary.
"""

import json
import math

import numpy as np
from safetensors.numpy import load_file


def softmax(x):
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def log_softmax(x):
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": np.vectorize(lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2),
    "silu": lambda x: x * sigmoid(x),
}


def sinusoids(length, size):
    table = np.zeros((length, size))
    for position in range(length):
        for column in range(size):
            angle = position / 10000 ** (column // 2 * 2 / size)
            table[position, column] = math.cos(angle) if column % 2 else math.sin(angle)
    return table


class Oracle:
    def __init__(self, bundle):
        manifest = json.loads((bundle / "bundle.json").read_text())
        self.config, self.eos_id = manifest["config"], manifest["eos_id"]
        (self.bos_id,) = manifest["decoder_start"]
        stored = load_file(bundle / "fp32" / "model.safetensors")
        self.w = {name: array.astype(float) for name, array in stored.items()}
        tied = {  # the name that has the matrix of another one
            "target": {"generator.weight": "decoder.embedding.tokens.weight"},
            "embeddings": {"decoder.embedding.tokens.weight": "encoder.embedding.tokens.weight"},
            "all": {
                "generator.weight": "encoder.embedding.tokens.weight",
                "decoder.embedding.tokens.weight": "encoder.embedding.tokens.weight",
            },
        }
        self.w |= {new: self.w[old] for new, old in tied.get(self.config["tied"], {}).items()}

    def linear(self, name, x):
        return x @ self.w[f"{name}.weight"].T + self.w.get(f"{name}.bias", 0)

    def norm(self, name, x):
        if self.config["norm"] == "layer_norm":
            x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + self.config["norm_epsilon"])
        return x * self.w[f"{name}.weight"] + self.w.get(f"{name}.bias", 0)

    def sublayer(self, name, x, f):
        norm = f"{name}_sublayer.norm"
        if self.config["norm_first"]:
            return x + f(self.norm(norm, x))
        return self.norm(norm, x + f(x))

    def embed(self, side, ids, first=0):
        """Ids (N,) at the positions from `first` -> (N, M)."""
        name, config = f"{side}.embedding", self.config
        x = self.w[f"{name}.tokens.weight"][ids] * config["embedding_scale"]
        where = slice(first, first + len(ids))
        if config["positions"] == "learned":
            x = x + self.w[f"{name}.positions"][where]
        elif config["positions"] == "sinusoidal":
            x = x + sinusoids(where.stop, config["d_model"])[where]
        return self.norm(f"{name}.norm", x) if config["embedding_norm"] else x

    def heads(self, name, x):
        return self.linear(name, x).reshape(len(x), self.config["num_heads"], -1).swapaxes(0, 1)

    def attend(self, name, x, memory, gate):
        """Rows x (N, M) over memory (S, M), gate (H,) -> (N, M), weights (H, N, S)."""
        query, key = self.heads(f"{name}.query", x), self.heads(f"{name}.key", memory)
        weights = softmax(query @ key.swapaxes(1, 2) / math.sqrt(key.shape[-1]))
        mixed = weights @ self.heads(f"{name}.value", memory) * gate[:, None, None]
        return self.linear(f"{name}.output", mixed.swapaxes(0, 1).reshape(len(x), -1)), weights

    def feed_forward(self, name, x):
        activate = ACTIVATIONS[self.config["activation"]]
        if self.config["gated"]:
            hidden = activate(self.linear(f"{name}.gate", x)) * self.linear(f"{name}.up", x)
        else:
            hidden = activate(self.linear(f"{name}.up", x))
        return self.linear(f"{name}.down", hidden)

    def encode(self, ids, gates=None):
        """Source ids (S,), gates (L, H) -> memory (S, M)."""
        x, config = self.embed("encoder", ids), self.config
        gates = (
            np.ones((config["num_encoder_layers"], config["num_heads"])) if gates is None else gates
        )
        for layer in range(config["num_encoder_layers"]):
            name, gate = f"encoder.layers.{layer}", gates[layer]
            x = self.sublayer(
                f"{name}.self",
                x,
                lambda y, n=name, g=gate: self.attend(f"{n}.self_attention", y, y, g)[0],
            )
            x = self.sublayer(
                f"{name}.feed_forward",
                x,
                lambda y, n=name: self.feed_forward(f"{n}.feed_forward", y),
            )
        return self.norm("encoder.norm", x) if config["final_norm"] else x

    def start(self):
        """The states (L, M) before the first position."""
        return np.zeros((self.config["num_decoder_layers"], self.config["d_model"]))

    def step(self, token, position, states, memory, gates=None):
        """Return the log-probs (V,), the new states (L, M) and the cross-attention (L, H, S)."""
        config, states, attended = self.config, states.copy(), []
        gates = (
            np.ones((config["num_decoder_layers"], config["num_heads"])) if gates is None else gates
        )
        x = self.embed("decoder", np.array([token]), position)  # (1, M)
        for layer in range(config["num_decoder_layers"]):
            name = f"decoder.layers.{layer}"

            def recur(y, layer=layer, name=name):
                f = sigmoid(self.linear(f"{name}.ssru.forget_gate", y[0]))
                states[layer] = f * states[layer] + (1 - f) * self.linear(
                    f"{name}.ssru.values", y[0]
                )
                return np.maximum(states[layer], 0)[None]

            def cross(y, layer=layer, name=name):
                y, weights = self.attend(f"{name}.cross_attention", y, memory, gates[layer])
                attended.append(weights[:, 0])
                return y

            x = self.sublayer(f"{name}.self", x, recur)
            x = self.sublayer(f"{name}.cross", x, cross)
            x = self.sublayer(
                f"{name}.feed_forward",
                x,
                lambda y, n=name: self.feed_forward(f"{n}.feed_forward", y),
            )
        x = self.norm("decoder.norm", x) if config["final_norm"] else x
        return log_softmax(self.linear("generator", x[0])), states, np.array(attended)

    def score(self, source, target, encoder_gates=None, gates=None):
        """Return the log-prob (T,) of each token of a target, and the cross-attention (L, H, T, S)
        of the steps that predict them."""
        memory, states = self.encode(source, encoder_gates), self.start()
        log_probs, attended = [], []
        for position, (read, token) in enumerate(zip([self.bos_id, *target], target, strict=False)):
            row, states, weights = self.step(read, position, states, memory, gates)
            log_probs.append(row[token])
            attended.append(weights)
        return np.array(log_probs), np.stack(attended, 2)

    def beam_search(self, source, beam_size, most):
        """Return hypotheses (mean log-prob, ids), best first, as the service with a length penalty
        of 1 and early stopping."""
        memory, finished = self.encode(source), []
        live = [([], 0.0, self.start())]  # ids, their log-prob, states
        for position in range(most):
            grown = []
            for ids, total, states in live:
                row, new, _ = self.step((ids or [self.bos_id])[-1], position, states, memory)
                grown += [([*ids, i], total + row[i], new) for i in range(len(row))]
            grown.sort(key=lambda each: -each[1])
            best = grown[: 2 * beam_size]
            finished += [
                (total / len(ids), ids)
                for ids, total, _ in best[:beam_size]
                if ids[-1] == self.eos_id
            ]
            live = [each for each in best if each[0][-1] != self.eos_id][:beam_size]
            if position == most - 1:
                finished += [(total / len(ids), ids) for ids, total, _ in live]
            if len(finished) >= beam_size:
                break
        return sorted(finished, key=lambda each: -each[0])[:beam_size]
