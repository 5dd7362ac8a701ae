"""Pairs of texts from disk to batches of ids."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from model.data.tokenizers import SPECIALS, UNK
from model.network.config import InputError, TransformerConfig

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Example:
    source_ids: list[int]
    target_ids: list[int]
    next_probs: Tensor | None = None  # (T, V), of the target and eos; of all of a batch, or none


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded on the right. `target_ids` enter the decoder, `next_ids` are what it must predict."""

    source_ids: Tensor  # (B, S)
    source_length: Tensor  # (B,)
    target_ids: Tensor  # (B, T): bos and the target
    next_ids: Tensor  # (B, T): the target and eos
    target_length: Tensor  # (B,)
    next_probs: Tensor | None  # (B, T, V), zeros at padding


def read_pairs(path: Path) -> list[Pair]:
    """Lines of `source<TAB>target`. Raises InputError naming the first line that is not."""
    pairs: list[Pair] = []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) != 2 or not all(field.strip() for field in fields):
            raise InputError(f"{path}:{number}: expected source<TAB>target, got {line!r}")
        pairs.append((fields[0], fields[1]))
    if not pairs:
        raise InputError(f"{path} holds no pairs")
    return pairs


def encode_sources(
    sources: Sequence[str], tokenizer: Tokenizer, config: TransformerConfig
) -> list[list[int]]:
    """Raises InputError naming the first source that is longer than the model allows."""
    rows = [encoding.ids for encoding in tokenizer.encode_batch([*sources])]
    for source, ids in zip(sources, rows, strict=True):
        if len(ids) > config.max_source_length:
            limit = f"max_source_length of {config.max_source_length} tokens"
            raise InputError(f"source {source!r} exceeds the {limit}")
    return rows


def encode_pairs(
    pairs: Sequence[Pair], source: Tokenizer, target: Tokenizer, config: TransformerConfig
) -> list[Example]:
    """Raises InputError naming the first text that is longer than the model allows."""
    sources = encode_sources([text for text, _ in pairs], source, config)
    targets = target.encode_batch([text for _, text in pairs])
    for (_, text), encoding in zip(pairs, targets, strict=True):
        if len(encoding.ids) + 1 > config.max_target_length:
            limit = f"max_target_length of {config.max_target_length} tokens"
            raise InputError(f"target {text!r} with bos exceeds the {limit}")
    return [Example(ids, t.ids) for ids, t in zip(sources, targets, strict=True)]


def refuse_specials(pairs: Sequence[Pair], source: Tokenizer, target: Tokenizer) -> None:
    """Raises InputError naming the first text that encodes to a special token, <unk> among them."""
    for tokenizer, texts in zip((source, target), zip(*pairs, strict=True), strict=True):
        for text, encoding in zip(texts, tokenizer.encode_batch([*texts]), strict=True):
            for token, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True):
                if token in SPECIALS:
                    why = "not in the vocabulary" if token == UNK else "a token of the model's own"
                    raise InputError(f"{text!r} has {text[start:end]!r}, {why}")


def pad(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """-> ids (B, longest), lengths (B,)."""
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[pad_id] * (longest - len(row))] for row in rows])
    return ids, torch.tensor([len(row) for row in rows])


def collate(examples: Sequence[Example], config: TransformerConfig) -> Batch:
    source_ids, source_length = pad([e.source_ids for e in examples], config.pad_id)
    target_ids, target_length = pad(
        [[config.bos_id, *e.target_ids] for e in examples], config.pad_id
    )
    next_ids, _ = pad([[*e.target_ids, config.eos_id] for e in examples], config.pad_id)
    probs = [e.next_probs.float() for e in examples if e.next_probs is not None]
    next_probs = pad_sequence(probs, batch_first=True) if probs else None
    return Batch(source_ids, source_length, target_ids, next_ids, target_length, next_probs)


def join_examples(
    examples: Sequence[Example], share: float, config: TransformerConfig, seed: int
) -> list[Example]:
    """`share` of the examples in random threes, so that long sources, of which there may be few,
    are no news. A three that would exceed the model's lengths stays apart."""
    generator = torch.Generator().manual_seed(seed)
    order: list[int] = torch.randperm(len(examples), generator=generator).tolist()
    count = round(share * len(examples)) // 3 * 3
    joined = [examples[i] for i in order[count:]]
    for start in range(0, count, 3):
        three = [examples[i] for i in order[start : start + 3]]
        source_ids = [token for example in three for token in example.source_ids]
        target_ids = [token for example in three for token in example.target_ids]
        probs = [e.next_probs for e in three if e.next_probs is not None]
        next_probs = torch.cat([*(p[:-1] for p in probs[:-1]), *probs[-1:]]) if probs else None
        fits = (
            len(source_ids) <= config.max_source_length
            and len(target_ids) < config.max_target_length
        )
        joined += [Example(source_ids, target_ids, next_probs)] if fits else three
    return joined


def shuffled_batches(
    examples: Sequence[Example], batch_size: int, config: TransformerConfig, seed: int
) -> Iterator[Batch]:
    """Every example once, in batches of like lengths that come in random order."""
    generator = torch.Generator().manual_seed(seed)
    order: list[int] = torch.randperm(len(examples), generator=generator).tolist()
    order.sort(key=lambda i: (len(examples[i].source_ids), len(examples[i].target_ids)))
    starts = range(0, len(order), batch_size)
    for chosen in torch.randperm(len(starts), generator=generator).tolist():
        start = starts[chosen]
        yield collate([examples[i] for i in order[start : start + batch_size]], config)
