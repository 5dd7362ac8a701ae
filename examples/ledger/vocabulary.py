"""The tokenizer and the configuration of a checkpoint, in the files of its kind."""

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    BartConfig,
    GenerationConfig,
    MarianConfig,
    PegasusConfig,
    PreTrainedConfig,
    T5Config,
)

from examples.ledger.lines import CODES, Line

PIECES = 4000
SOURCE_PIECES, TARGET_PIECES = 2000, 2600  # of Marian, together more than 4000
PEGASUS_IDS = 103  # that Pegasus has before and between the pieces
D_MODEL, D_FF, NUM_HEADS, NUM_LAYERS = 128, 512, 4, 2
SIZES: dict[str, Any] = {  # as Marian, BART and Pegasus call them
    "d_model": D_MODEL,
    "encoder_layers": NUM_LAYERS,
    "decoder_layers": NUM_LAYERS,
    "encoder_attention_heads": NUM_HEADS,
    "decoder_attention_heads": NUM_HEADS,
    "encoder_ffn_dim": D_FF,
    "decoder_ffn_dim": D_FF,
    "max_position_embeddings": 128,
}
PREFIX = "translate English to {name}: "  # of sources, but for Marian's
NAMES = {"fra": "French", "deu": "German", "spa": "Spanish"}  # as T5's prefix calls them


def write_marian(folder: Path, lines: Sequence[Line]) -> str:
    """Write what an OPUS-MT repository has besides the weights.

    Return what comes before a source, with a place for the language.
    """
    source = train_pieces((line.english for line in lines), SOURCE_PIECES)
    target = train_pieces((line.translation for line in lines), TARGET_PIECES)
    names = dict.fromkeys(["</s>", "<unk>", *pieces_of(source), *pieces_of(target)])
    names.pop("<pad>")
    names |= dict.fromkeys([*(f">>{language}<<" for language in CODES), "<pad>"])
    ids = {name: i for i, name in enumerate(names)}
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)
    (folder / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
    config = MarianConfig(
        vocab_size=len(ids),
        **SIZES,
        activation_function="swish",
        scale_embedding=True,
        dropout=0.0,
        pad_token_id=ids["<pad>"],
        decoder_start_token_id=ids["<pad>"],
        eos_token_id=0,
        forced_eos_token_id=None,
    )
    options = {"num_beams": 4, "bad_words_ids": [[ids["<pad>"]]], "renormalize_logits": True}
    save(folder, config, options)
    return ">>{language}<< "


def write_t5(folder: Path, lines: Sequence[Line]) -> str:
    """Write what a T5 repository has besides the weights. Return the prefix of a source."""
    (folder / "spiece.model").write_bytes(train_pieces(texts_of(lines), PIECES))
    config = T5Config(
        vocab_size=PIECES + 96,  # as T5 has it: a multiple of 128
        d_model=D_MODEL,
        d_kv=D_MODEL // NUM_HEADS,
        d_ff=D_FF,
        num_layers=NUM_LAYERS,
        num_heads=NUM_HEADS,
        dropout_rate=0.0,
        feed_forward_proj="relu",
        pad_token_id=0,
        eos_token_id=1,
    )
    config.decoder_start_token_id = 0
    save(folder, config, {"num_beams": 4})
    return PREFIX


def write_bart(folder: Path, lines: Sequence[Line]) -> str:
    """Write what a BART repository has besides the weights. Return the prefix of a source."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        texts_of(lines), PIECES, special_tokens=special, show_progress=False
    )
    tokenizer.save_model(str(folder))
    config = BartConfig(
        vocab_size=tokenizer.get_vocab_size(),
        **SIZES,
        dropout=0.0,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
        forced_eos_token_id=None,
    )
    save(folder, config, {"num_beams": 4})
    return PREFIX


def write_pegasus(folder: Path, lines: Sequence[Line]) -> str:
    """Write what a Pegasus repository has besides the weights. Return the prefix of a source."""
    (folder / "spiece.model").write_bytes(train_pieces(texts_of(lines), PIECES))
    config = PegasusConfig(
        vocab_size=PIECES + PEGASUS_IDS,
        **SIZES,
        activation_function="relu",
        scale_embedding=True,
        dropout=0.0,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        forced_eos_token_id=None,
    )
    save(folder, config, {"num_beams": 4})
    return PREFIX


def texts_of(lines: Sequence[Line]) -> Iterator[str]:
    """Yield sources with their prefix, and targets."""
    for line in lines:
        yield PREFIX.format(name=NAMES[line.language]) + line.english
        yield line.translation


def train_pieces(texts: Iterable[str], size: int) -> bytes:
    """Return a sentencepiece model of T5's first ids: <pad>, </s>, <unk>."""
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=size,
        model_type="unigram",
        character_coverage=1.0,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


def pieces_of(model: bytes) -> list[str]:
    processor = SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]


def save(folder: Path, config: PreTrainedConfig, options: Mapping[str, Any]) -> None:
    """Write config.json and generation_config.json."""
    config.save_pretrained(folder)
    generation = {"max_length": 128, **options}
    for name in ("decoder_start_token_id", "pad_token_id", "eos_token_id"):
        generation[name] = getattr(config, name)
    GenerationConfig(**generation).save_pretrained(folder)
