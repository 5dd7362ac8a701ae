"""Random models of Hugging Face's classes, and a comparison of their numbers with our network's."""

import numpy as np
import torch
import transformers
from torch import nn

from model.data.pairs import pad
from model.importers.checkpoint import Checkpoint
from model.importers.networks.bart import KINDS, read_bart
from model.importers.networks.t5 import read_t5
from tests.model.importers.checkpoints import randomise, store

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
TWO = {"decoder_vocab_size": 44, "share_encoder_decoder_embeddings": False}
BART = {  # the beginning of the names of a family's classes, the id of padding, and other fields
    "bart": ("Bart", 1, {}),
    "mbart": ("MBart", 1, {}),
    "plbart": ("PLBart", 1, {}),
    "blenderbot": ("Blenderbot", 0, {}),
    "blenderbot-small": ("BlenderbotSmall", 0, {}),
    "marian": ("Marian", 39, {}),
    "marian of two vocabularies": ("Marian", 39, TWO),
    "pegasus": ("Pegasus", 0, {}),
    # a pad at the start, which no such checkpoint has, would have no position
    "m2m_100": ("M2M100", 1, {"decoder_start_token_id": 2}),
}
T5 = {"t5": "T5", "t5 1.1": "T5", "mt5": "MT5", "umt5": "UMT5"}
OWN_OUTPUT = ("t5 1.1", "mt5")  # the output projection is a matrix of its own


def random_bart(random):
    """Return random sizes and options of a configuration of BART's family."""
    heads, d_ff = int(random.integers(1, 4)), int(random.integers(4, 60))
    return {
        "d_model": heads * int(random.choice([4, 7, 8, 16])),
        "encoder_layers": int(random.integers(1, 3)),
        "decoder_layers": int(random.integers(1, 3)),
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": d_ff,
        "decoder_ffn_dim": d_ff,
        "max_position_embeddings": int(random.integers(24, 60)),
        "activation_function": str(random.choice(["relu", "gelu", "gelu_new", "swish"])),
        "scale_embedding": bool(random.integers(2)),
        "tie_word_embeddings": bool(random.integers(2)),
    }


def random_t5(random):
    """Return random sizes and options of a configuration of T5's family."""
    functions = ["relu", "gelu", "gated-gelu", "gated-silu", "gated-relu"]
    return {
        "d_model": int(random.integers(5, 33)),
        "d_kv": int(random.choice([4, 7, 8, 16])),
        "d_ff": int(random.integers(4, 60)),
        "num_layers": int(random.integers(1, 3)),
        "num_decoder_layers": int(random.integers(1, 3)),
        "num_heads": int(random.integers(1, 4)),
        "relative_attention_num_buckets": int(random.choice([8, 32])),
        "relative_attention_max_distance": int(random.choice([20, 128])),
        "layer_norm_epsilon": float(random.choice([1e-6, 1e-5, 1e-3])),
        "feed_forward_proj": str(random.choice(functions)),
        "tie_word_embeddings": bool(random.integers(2)),
    }


def bart_like(family, random):
    name, pad_id, own = BART[family]
    fields = random_bart(random) | {
        "vocab_size": 40,
        "tie_word_embeddings": True,
        "max_position_embeddings": 32,
        "pad_token_id": pad_id,
        "eos_token_id": 2,
        "decoder_start_token_id": int(random.choice([pad_id, 2])),
        "forced_eos_token_id": None,
    }
    return name, fields | own


def t5_like(family, random):
    own = {"vocab_size": 40, "decoder_start_token_id": 0}
    own["tie_word_embeddings"] = family not in OWN_OUTPUT
    return T5[family], random_t5(random) | own


def random_model(family, seed, **changes):
    """Return a model of Hugging Face in which no weight, norm or bias has its first value."""
    random = np.random.default_rng(seed)
    name, fields = (bart_like if family in BART else t5_like)(family, random)
    config = getattr(transformers, f"{name}Config")(**fields | changes)
    config._attn_implementation = "eager"  # the only one that gives weights
    kind = "MTModel" if name == "Marian" else "ForConditionalGeneration"
    model = randomise(getattr(transformers, f"{name}{kind}")(config), seed)
    if family in OWN_OUTPUT:  # transformers 5 makes T5's matrices one
        model.lm_head.weight = nn.Parameter(torch.randn_like(model.lm_head.weight) * 0.3)
    return model


def save(model, folder, shape):
    model.save_pretrained(folder)
    store(model, folder, shape)


def read(folder):
    checkpoint = Checkpoint(folder)
    if checkpoint.config["model_type"] in KINDS:
        return read_bart(checkpoint)
    return read_t5(checkpoint, max_length=512)


def ragged(lengths, vocabulary, seed):
    random = np.random.default_rng(seed)
    ids = np.setdiff1d(np.arange(3, vocabulary), [39])
    return [ids[random.integers(0, len(ids), length)].tolist() for length in lengths]


def assert_same_numbers(ours, theirs, source_lengths, target_lengths, seed=0):
    config = ours.config
    source_ids, source_length = pad(
        ragged(source_lengths, config.source_vocab_size, seed), config.pad_id
    )
    target_ids, target_length = pad(
        ragged(target_lengths, config.target_vocab_size, seed + 1), config.pad_id
    )
    target_ids[:, 0] = config.bos_id
    with torch.no_grad():
        expected = theirs(
            input_ids=source_ids,
            attention_mask=(torch.arange(source_ids.size(1)) < source_length[:, None]).long(),
            decoder_input_ids=target_ids,
            output_attentions=True,
        )
        memory, attended = ours.encoder(source_ids, source_length)
        encoder_attention = [layer.weights for layer in attended]
        cross = ours.decoder.cross(memory)
        decoded = ours.decoder(target_ids, target_length, cross, source_length)
        log_probs = ours.log_probs(decoded.hidden)
    kinds = (
        (encoder_attention, expected.encoder_attentions, source_lengths, source_lengths),
        (decoded.decoder_attention, expected.decoder_attentions, target_lengths, target_lengths),
        (decoded.cross_attention, expected.cross_attentions, target_lengths, source_lengths),
    )
    for i, length in enumerate(target_lengths):
        reference = expected.logits[i, :length].log_softmax(-1)
        torch.testing.assert_close(log_probs[i, :length], reference, **TOLERANCE)
    for layers, references, queries, keys in kinds:
        for weights, reference in zip(layers, references, strict=True):
            for i, (q, k) in enumerate(zip(queries, keys, strict=True)):
                torch.testing.assert_close(
                    weights[i, :, :q, :k], reference[i, :, :q, :k], **TOLERANCE
                )
