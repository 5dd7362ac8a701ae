"""Random torch.nn.Transformers inside modules, and heed.toml files that describe them."""

import json
import math
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from model.data.pairs import pad
from model.network.config import InputError, Tied
from tests.model.importers.annotated import sines

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
LONGEST = 24
SOURCES, TARGETS = 20, 23  # tokens; the target's where the embeddings are two
IDS = {"pad_id": 1, "start_id": 2, "eos_id": 3}
USE = {
    **IDS,
    "source_prefix_ids": [2],
    "source_suffix_ids": [3],
    "max_source_length": LONGEST,
    "max_target_length": LONGEST,
}


class Translator(nn.Module):
    """torch.nn.Transformer between embeddings and a projection, as people wrap it."""

    def __init__(self, options, positions, tied, d_model, bias=True):
        super().__init__()
        shared = tied in (Tied.all, Tied.embeddings)
        self.scale = math.sqrt(d_model)
        self.words_in = nn.Embedding(SOURCES, d_model)
        self.words_out = nn.Embedding(SOURCES if shared else TARGETS, d_model)
        if shared:
            self.words_out.weight = self.words_in.weight
        if positions == "own":
            self.places_in = nn.Parameter(torch.empty(LONGEST + 3, d_model))
            self.places_out = nn.Embedding(LONGEST, d_model)
        else:  # a buffer with an axis for the batch, in the state dict or not
            table = sines(LONGEST + 9, d_model).unsqueeze(1)
            self.register_buffer("table", table, persistent=positions == "buffer")
        with warnings.catch_warnings():  # torch says that nested tensors are not used
            warnings.simplefilter("ignore")
            self.core = nn.Transformer(d_model, dim_feedforward=24, bias=bias, **options)
        self.project = nn.Linear(d_model, self.words_out.num_embeddings, bias=bias)
        if tied in (Tied.all, Tied.target):
            self.project.weight = self.words_out.weight

    def places(self, length):
        if hasattr(self, "table"):
            return (self.table[:length, 0],) * 2
        return self.places_in[:length], self.places_out.weight[:length]

    def forward(self, source_ids, source_padding, target_ids, target_padding):
        source = self.words_in(source_ids) * self.scale + self.places(source_ids.size(1))[0]
        target = self.words_out(target_ids) * self.scale + self.places(target_ids.size(1))[1]
        causal = torch.ones(target_ids.size(1), target_ids.size(1)).triu(1).bool()
        hidden = self.core(
            source,
            target,
            tgt_mask=causal,
            src_key_padding_mask=source_padding,
            tgt_key_padding_mask=target_padding,
            memory_key_padding_mask=source_padding,
        )
        return self.project(hidden).log_softmax(-1)

    def attentions(self):
        """The modules that attend: of the encoder, the decoder, and across."""
        encoder, decoder = self.core.encoder.layers, self.core.decoder.layers
        return (
            [layer.self_attn for layer in encoder],
            [layer.self_attn for layer in decoder],
            [layer.multihead_attn for layer in decoder],
        )


def record(module):
    """Let a torch.nn.MultiheadAttention keep the weights of every head, which it can return."""
    attend = module.forward

    def forward(*inputs, **options):
        output = attend(*inputs, **options | {"need_weights": True, "average_attn_weights": False})
        module.weights = output[1].detach()
        return output

    module.forward = forward


def randomize(model, seed):
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        norm = "norm" in name and name.endswith(("weight", "a_2"))
        nn.init.normal_(parameter, 1.0 if norm else 0.0, 0.3)
    return model.eval()


def write(folder, names=None, **keys):
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items() if value is not None]
    patterns = [f'"{pattern}" = "{target}"' for pattern, target in (names or {}).items()]
    (folder / "heed.toml").write_text("\n".join([*lines, "[names]", *patterns]))


def refusal(call, *inputs):
    """Return the sentence with which `call` refuses its inputs."""
    with pytest.raises(InputError) as caught:
        call(*inputs)
    return str(caught.value)


def save(state, folder, seed):
    """Write a state dict; return what heed.toml must say of the file."""
    if seed % 3 == 0:
        save_file({name: x.clone() for name, x in state.items()}, folder / "model.safetensors")
    elif seed % 3 == 1:
        torch.save({"epoch": 7, "model_state_dict": state}, folder / "model.pt")
        return {"state": "model_state_dict"}
    else:
        torch.save(state, folder / "pytorch_model.bin")
    return {}


def translator(seed, norm_first=False, positions="own"):
    """A random torch.nn.Transformer in its module, and the keys that describe it."""
    random = np.random.default_rng(seed)
    heads, tied = int(random.integers(1, 4)), list(Tied)[int(random.integers(4))]
    options = {
        "nhead": heads,
        "num_encoder_layers": int(random.integers(1, 4)),
        "num_decoder_layers": int(random.integers(1, 4)),
        "norm_first": norm_first,
        "activation": str(random.choice(["relu", "gelu"])),
        "layer_norm_eps": float(random.choice([1e-5, 1e-3])),
        "batch_first": True,
    }
    d_model, bias = 4 * heads * int(random.integers(1, 4)), bool(random.integers(4))
    model = randomize(Translator(options, positions, tied, d_model, bias), seed)
    if seed % 5 == 1:  # stacks of one's own may have none
        model.core.encoder.norm = model.core.decoder.norm = None
    tables = {"own": ["places_in", "places_out.weight"], "buffer": "table"}
    return model, {
        **USE,
        "kind": "torch",
        "transformer": "core.",
        "source_embedding": "words_in.weight",
        "target_embedding": "words_out.weight",
        "output": "project.weight",
        "positions": tables.get(positions, "sinusoidal"),
        "embedding_scale": "sqrt" if seed % 2 else math.sqrt(d_model),
        "num_heads": heads,
        "activation": options["activation"],
        "norm_first": norm_first,
        "norm_epsilon": options["layer_norm_eps"],
    }


def ragged(lengths, vocabulary, random):
    return [random.integers(4, vocabulary, length).tolist() for length in lengths]


def assert_same_numbers(ours, theirs, source_lengths, target_lengths, seed):
    config, random = ours.config, np.random.default_rng(seed)
    source_ids, source_length = pad(ragged(source_lengths, SOURCES, random), config.pad_id)
    target_ids, target_length = pad(
        ragged(target_lengths, config.target_vocab_size, random), config.pad_id
    )
    target_ids[:, 0] = config.bos_id
    expected = theirs(  # with gradients: without, torch takes a path that gives no weights
        source_ids, source_ids == config.pad_id, target_ids, target_ids == config.pad_id
    ).detach()
    with torch.no_grad():
        log_probs = ours(source_ids, source_length, target_ids, target_length)
        memory, attended = ours.encoder(source_ids, source_length)
        encoder_attention = [layer.weights for layer in attended]
        cross = ours.decoder.cross(memory)
        decoded = ours.decoder(target_ids, target_length, cross, source_length)
    for i, length in enumerate(target_lengths):
        torch.testing.assert_close(log_probs[i, :length], expected[i, :length], **TOLERANCE)
    kinds = (
        (encoder_attention, source_lengths, source_lengths),
        (decoded.decoder_attention, target_lengths, target_lengths),
        (decoded.cross_attention, target_lengths, source_lengths),
    )
    for (layers, queries, keys), modules in zip(kinds, theirs.attentions(), strict=True):
        for weights, module in zip(layers, modules, strict=True):
            for i, (q, k) in enumerate(zip(queries, keys, strict=True)):
                torch.testing.assert_close(
                    weights[i, :, :q, :k], module.weights[i, :, :q, :k], **TOLERANCE
                )
