"""Random models of Hugging Face's classes, and a comparison of their numbers with our network's."""

import numpy as np
import torch
import transformers
from torch import nn

from model.data.pairs import pad
from model.importers.bart import KINDS, read_bart
from model.importers.checkpoint import Checkpoint
from model.importers.t5 import read_t5

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
SHAPES = ("safetensors", "shards", "bin")
BART = ("bart", "mbart", "marian", "marian of two vocabularies", "pegasus", "m2m_100")
T5 = ("t5", "t5 1.1", "mt5", "umt5")
PAD = {"marian": 39, "marian of two vocabularies": 39, "t5": 0, "pegasus": 0}


def bart_like(family, random):
    heads, vocabulary = int(random.integers(1, 4)), 40
    pad_id = PAD.get(family, 1)
    common = {
        "vocab_size": vocabulary,
        "d_model": 8 * heads * int(random.integers(1, 3)),
        "encoder_layers": int(random.integers(1, 4)),
        "decoder_layers": int(random.integers(1, 4)),
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 24,
        "max_position_embeddings": 32,
        "activation_function": str(random.choice(["relu", "gelu", "gelu_new", "swish"])),
        "scale_embedding": bool(random.integers(2)),
        "pad_token_id": pad_id,
        "eos_token_id": 2,
        "decoder_start_token_id": int(random.choice([pad_id, 2])),
        "forced_eos_token_id": None,
    }
    match family:
        case "bart":
            return transformers.BartConfig(**common)
        case "mbart":
            return transformers.MBartConfig(**common)
        case "marian":
            return transformers.MarianConfig(**common)
        case "marian of two vocabularies":
            sizes = {"decoder_vocab_size": 44, "share_encoder_decoder_embeddings": False}
            return transformers.MarianConfig(**common, **sizes)
        case "pegasus":
            return transformers.PegasusConfig(**common)
        case _:
            # a pad at the start, which no such checkpoint has, would have no position
            return transformers.M2M100Config(**common | {"decoder_start_token_id": 2})


def t5_like(family, random):
    common = {
        "vocab_size": 40,
        "d_model": 8 * int(random.integers(1, 4)),
        "d_kv": int(random.choice([4, 8, 16])),
        "d_ff": 24,
        "num_layers": int(random.integers(1, 4)),
        "num_decoder_layers": int(random.integers(1, 4)),
        "num_heads": int(random.integers(1, 4)),
        "relative_attention_num_buckets": int(random.choice([8, 32])),
        "relative_attention_max_distance": int(random.choice([20, 128])),
        "decoder_start_token_id": 0,
    }
    gated = {"feed_forward_proj": str(random.choice(["gated-gelu", "gated-silu"]))}
    match family:
        case "t5":
            return transformers.T5Config(**common, feed_forward_proj="relu")
        case "t5 1.1":
            return transformers.T5Config(**common, **gated, tie_word_embeddings=False)
        case "mt5":
            return transformers.MT5Config(**common, **gated)
        case _:
            return transformers.UMT5Config(**common, **gated)


def random_model(family, seed):
    """A model of Hugging Face in which no weight, norm or bias has its first value."""
    random = np.random.default_rng(seed)
    config = (bart_like if family in BART else t5_like)(family, random)
    config._attn_implementation = "eager"  # the only one that gives weights
    torch.manual_seed(seed)
    name = type(config).__name__.removesuffix("Config")
    kind = "MTModel" if name == "Marian" else "ForConditionalGeneration"
    model = getattr(transformers, f"{name}{kind}")(config).eval()
    for key, parameter in model.named_parameters():
        if "embed_positions" not in key or name in ("Bart", "MBart"):
            nn.init.normal_(parameter, 1.0 if "norm" in key else 0.0, 0.3)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_()
    if family in ("t5 1.1", "mt5"):  # whose output projection is a matrix of its own
        model.lm_head.weight = nn.Parameter(torch.randn_like(model.lm_head.weight) * 0.3)
    return model


def save(model, folder, shape):
    if shape == "bin":
        model.config.save_pretrained(folder)
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    else:
        model.save_pretrained(folder, max_shard_size="20KB" if shape == "shards" else "5GB")


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
        memory, encoder_attention = ours.encoder(source_ids, source_length)
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
