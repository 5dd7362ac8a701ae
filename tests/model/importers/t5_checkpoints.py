"""Whole checkpoints of T5's family."""

import json
from functools import cache

import tokenizers
import transformers
from tokenizers.processors import RobertaProcessing

from model.importers.tokenizers.probes import probes
from tests.model.importers.checkpoints import PIECES, names_of, save, train_pieces

SIZES = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 2}
SPECIAL = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}


def write(name, folder, seed, changes, symbols=(), generation=None, **files):
    """Write a checkpoint of the classes that begin with `name`; with 128 rows more than pieces, as
    T5 has, unless `changes` say so."""
    pieces = train_pieces("unigram", symbols)
    own = {"vocab_size": len(names_of(pieces)), "extra_rows": 128}
    return save_t5(name, folder, seed, own | changes, generation, spiece__model=pieces, **files)


def save_t5(name, folder, seed, changes, generation=None, **files):
    chosen = SIZES | SPECIAL | changes
    chosen["vocab_size"] += chosen.pop("extra_rows", 0)
    config = getattr(transformers, f"{name}Config")(**chosen)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    generation = {"max_length": 24} | {key: chosen[key] for key in SPECIAL} | (generation or {})
    return save(model, folder, generation, seed, **files)


def write_t5(folder, seed=0, **changes):
    """T5 1.0: one matrix for embeddings and output, states scaled before it."""
    return write("T5", folder, seed, {"feed_forward_proj": "relu"} | changes)


def write_flan(folder, seed=0, **changes):
    """T5 1.1 and FLAN: an output projection of its own; a repetition penalty and other rules."""
    own = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    rules = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_length": 6}
    return write("T5", folder, seed, own | changes, generation=rules)


def write_mt5(folder, seed=0, **changes):
    own = {"tie_word_embeddings": False, "extra_rows": 0}
    return write("MT5", folder, seed, own | changes)


def write_umt5(folder, seed=0, **changes):
    """UMT5: distances have a bias in every layer."""
    own = {"tie_word_embeddings": False}
    return write("UMT5", folder, seed, own | changes)


def write_madlad(folder, seed=0, **changes):
    """MADLAD: T5 with a start of its own, and languages that are pieces."""
    own = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    own |= {"decoder_start_token_id": 3, "extra_rows": 0}
    files = {"tokenizer_config__json": {"extra_ids": 0}}
    return write("T5", folder, seed, own | changes, ("<2en>", "<2fr>"), **files)


def write_byt5(folder, seed=0, **changes):
    """ByT5: T5 1.1 that reads bytes. No file but config.json says so."""
    own = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    own |= {"vocab_size": 384, "tokenizer_class": "ByT5Tokenizer"}
    return save_t5("T5", folder, seed, own | changes)


@cache
def train_bytes():
    """Return a tokenizer.json of a byte-level BPE, with RoBERTa's ids around a text."""
    bpe = tokenizers.ByteLevelBPETokenizer()
    special = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
    bpe.train_from_iterator(probes(), PIECES, special_tokens=special, show_progress=False)
    library = tokenizers.Tokenizer.from_str(bpe.to_str())
    library.post_processor = RobertaProcessing(("</s>", 2), ("<s>", 1), add_prefix_space=False)
    return library.to_str()


def write_codet5(folder, seed=0, **changes):
    """CodeT5: T5 1.0 with a tokenizer of RoBERTa's, here as tokenizer.json alone."""
    stored = json.loads(train_bytes())
    own = {"feed_forward_proj": "relu", "vocab_size": len(stored["model"]["vocab"])}
    own |= {"bos_token_id": 1, "eos_token_id": 2}
    named = {"tokenizer_class": "RobertaTokenizer"}
    files = {"tokenizer__json": stored, "tokenizer_config__json": named}
    return save_t5("T5", folder, seed, own | changes, **files)
