"""Whole checkpoints of T5's family."""

import transformers

from tests.model.importers.checkpoints import names_of, save, train_pieces

SIZES = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 2}
SPECIAL = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}


def write(name, folder, seed, changes, symbols=(), generation=None, **files):
    """Write a checkpoint of the classes that begin with `name`; with 128 rows more than pieces, as
    T5 has, unless `changes` say so."""
    pieces = train_pieces("unigram", symbols)
    chosen = SIZES | SPECIAL | {"vocab_size": len(names_of(pieces)), "extra_rows": 128} | changes
    chosen["vocab_size"] += chosen.pop("extra_rows")
    config = getattr(transformers, f"{name}Config")(**chosen)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    generation = {"max_length": 24} | {key: chosen[key] for key in SPECIAL} | (generation or {})
    return save(model, folder, generation, seed, spiece__model=pieces, **files)


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
