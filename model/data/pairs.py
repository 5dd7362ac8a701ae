"""Read pairs of texts, encode them, and batch them for training."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from model.data.text_file import read_text
from model.data.tokenizers import SPECIALS, UNK, Case, case_of, normalize
from model.network.config import InputError, TransformerConfig

Pair = tuple[str, str]  # source, target


@dataclass(frozen=True, slots=True)
class PairFile:
    """The pairs of a file, and the place of each, so that errors can name it."""

    pairs: list[Pair]
    places: list[str]  # place of each pair, such as "train.tsv:7"


@dataclass(frozen=True, slots=True)
class Example:
    """A pair as ids, without bos and eos.

    `soft_labels` (T, V) are probabilities of all tokens, from teachers, at each position of the
    target and at its eos. In a batch, all examples have soft labels or none does.
    """

    source_ids: list[int]
    target_ids: list[int]
    soft_labels: Tensor | None = None


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Examples padded on the right: `target_ids` enter the decoder, which must predict `next_ids`
    or, if present, the soft labels."""

    source_ids: Tensor  # (B, S)
    source_length: Tensor  # (B,)
    target_ids: Tensor  # (B, T): bos and the target
    next_ids: Tensor  # (B, T): the target and eos
    target_length: Tensor  # (B,)
    soft_labels: Tensor | None  # (B, T, V), zeros at padding

    def to(self, device: torch.device) -> "TrainingBatch":
        return TrainingBatch(
            self.source_ids.to(device),
            self.source_length.to(device),
            self.target_ids.to(device),
            self.next_ids.to(device),
            self.target_length.to(device),
            None if self.soft_labels is None else self.soft_labels.to(device),
        )


def read_pairs(path: Path) -> list[Pair]:
    """Return the pairs in a file of `source<TAB>target` lines.

    Raise InputError naming the first line that has another form.
    """
    return read_pair_file(path).pairs


def read_pair_file(path: Path) -> PairFile:
    """Read lines of `source<TAB>target` with their places; blank lines are skipped.

    Raise InputError if the file is not UTF-8, has a line of another form, or holds no pair.
    """
    found = PairFile([], [])
    # not splitlines(), which also splits at form feeds and other separators inside a text
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) != 2 or not all(field.strip() for field in fields):
            raise InputError(f"{path}:{number}: expected source<TAB>target, got {line!r}")
        found.pairs.append((fields[0], fields[1]))
        found.places.append(f"{path}:{number}")
    if not found.pairs:
        raise InputError(f"{path} holds no pairs: give lines of source<TAB>target")
    return found


def encode_sources(
    sources: Sequence[str],
    tokenizer: Tokenizer,
    config: TransformerConfig,
    places: Sequence[str] | None = None,
) -> list[list[int]]:
    """Return the ids of each source.

    Raise InputError naming the first source that is longer than the model allows, and its place.
    """
    rows = [encoding.ids for encoding in tokenizer.encode_batch([*sources])]
    for i, ids in enumerate(rows):
        if len(ids) > config.max_source_length:
            place = f"{places[i]}: " if places else ""
            raise InputError(
                f"{place}source {sources[i]!r} has {len(ids)} tokens, more than the"
                f" max_source_length of {config.max_source_length}: shorten or remove it,"
                " or train with a larger --max-source-length"
            )
    return rows


def encode_pairs(
    file: PairFile, source: Tokenizer, target: Tokenizer, config: TransformerConfig
) -> list[Example]:
    """Return the pairs as examples, in the file's order.

    Raise InputError naming the first text that is longer than the model allows, and its place.
    """
    sources = encode_sources([text for text, _ in file.pairs], source, config, file.places)
    targets = target.encode_batch([text for _, text in file.pairs])
    for (_, text), encoding, place in zip(file.pairs, targets, file.places, strict=True):
        if len(encoding.ids) + 1 > config.max_target_length:
            raise InputError(
                f"{place}: target {text!r} has {len(encoding.ids) + 1} tokens with bos, more than"
                f" the max_target_length of {config.max_target_length}: shorten or remove it,"
                " or train with a larger --max-target-length"
            )
    return [Example(ids, t.ids) for ids, t in zip(sources, targets, strict=True)]


def find_special_tokens(file: PairFile, source: Tokenizer, target: Tokenizer) -> Iterator[str]:
    """Describe each text that contains a special token (<unk> is one), sources first."""
    for tokenizer, texts in zip((source, target), zip(*file.pairs, strict=True), strict=True):
        encodings = tokenizer.encode_batch([*texts])
        for text, encoding, place in zip(texts, encodings, file.places, strict=True):
            for token, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True):
                if token in SPECIALS:
                    why = "not in the vocabulary" if token == UNK else "a special token"
                    yield f"{place}: {text!r} has {text[start:end]!r}, {why}"
                    break


def refuse_special_tokens(file: PairFile, source: Tokenizer, target: Tokenizer) -> None:
    """Raise InputError naming the first text that contains a special token."""
    if problem := next(find_special_tokens(file, source, target), None):
        raise InputError(f"{problem}: remove or respell this text")


def describe_normalized(file: PairFile, source: Tokenizer, target: Tokenizer) -> Iterator[str]:
    """Say for each side how many texts its tokenizer changes before it splits them, if any."""
    sides = zip(
        ("sources", "targets"), (source, target), zip(*file.pairs, strict=True), strict=True
    )
    for side, tokenizer, texts in sides:
        found = [
            (place, text, changed)
            for place, text in zip(file.places, texts, strict=True)
            if (changed := normalize(tokenizer, text)) != text
        ]
        if found:
            place, text, changed = found[0]
            kept = case_of(tokenizer) is Case.keep
            how = "normalized" if kept else "normalized and put in lower case"
            advice = "" if kept else "; --case keep keeps capitals"
            yield (
                f"{side} are {how}, which changes {len(found)} of {len(texts)}; at {place},"
                f" {text!r} becomes {changed!r}{advice}"
            )


def pad(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Return ids (B, longest), padded on the right, and lengths (B,)."""
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[pad_id] * (longest - len(row))] for row in rows])
    return ids, torch.tensor([len(row) for row in rows])


def collate(examples: Sequence[Example], config: TransformerConfig) -> TrainingBatch:
    """Pad examples into a batch, with bos before the decoder inputs and eos after the ids
    to predict."""
    source_ids, source_length = pad([e.source_ids for e in examples], config.pad_id)
    target_ids, target_length = pad(
        [[config.bos_id, *e.target_ids] for e in examples], config.pad_id
    )
    next_ids, _ = pad([[*e.target_ids, config.eos_id] for e in examples], config.pad_id)
    labels = [e.soft_labels.float() for e in examples if e.soft_labels is not None]
    soft_labels = pad_sequence(labels, batch_first=True) if labels else None  # (B, T, V)
    return TrainingBatch(
        source_ids, source_length, target_ids, next_ids, target_length, soft_labels
    )


def concatenate_examples(
    examples: Sequence[Example], share: float, config: TransformerConfig, seed: int
) -> list[Example]:
    """Return all examples, a `share` of them concatenated in random groups of three.

    This teaches long sources, which may be rare among the pairs. A group that would exceed
    the model's lengths is not concatenated.
    """
    generator = torch.Generator().manual_seed(seed)
    order: list[int] = torch.randperm(len(examples), generator=generator).tolist()
    count = round(share * len(examples)) // 3 * 3
    result = [examples[i] for i in order[count:]]
    for start in range(0, count, 3):
        group = [examples[i] for i in order[start : start + 3]]
        whole = concatenate(group)
        fits = (
            len(whole.source_ids) <= config.max_source_length
            and len(whole.target_ids) < config.max_target_length
        )
        result += [whole] if fits else group
    return result


def concatenate(group: Sequence[Example]) -> Example:
    """Return one example of all sources and all targets, with one eos after the last target."""
    labels = [e.soft_labels for e in group if e.soft_labels is not None]
    return Example(
        [token for example in group for token in example.source_ids],
        [token for example in group for token in example.target_ids],
        torch.cat([*(each[:-1] for each in labels[:-1]), *labels[-1:]]) if labels else None,
    )


def shuffled_batches(
    examples: Sequence[Example], batch_size: int, config: TransformerConfig, seed: int
) -> Iterator[TrainingBatch]:
    """Yield every example once, in batches of similar lengths that come in random order.

    Similar lengths save padding; ties in length are broken at random.
    """
    generator = torch.Generator().manual_seed(seed)
    order: list[int] = torch.randperm(len(examples), generator=generator).tolist()
    order.sort(key=lambda i: (len(examples[i].source_ids), len(examples[i].target_ids)))
    starts = range(0, len(order), batch_size)
    for chosen in torch.randperm(len(starts), generator=generator).tolist():
        start = starts[chosen]
        yield collate([examples[i] for i in order[start : start + batch_size]], config)
