"""What trained models say together, as examples for another to learn (Hinton et al. 2015).

Models know the pairs that they were trained on by heart. What they know beyond them shows in
their answers to made-up sources (of sources without targets: Kim & Rush 2016).
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from rich.progress import track
from torch import Tensor
from torch.nn import functional

from model.data.pairs import Example, collate, pad
from model.network.config import InputError
from model.network.transformer import KeysValues, Transformer

ORDERS = (3, 4, 5)  # how many ids decide the next one of a made-up source
START, END = -1, -2
BATCH_SIZE = 512

Row = TypeVar("Row")
SourceIds = tuple[int, ...]
NGrams = dict[SourceIds, tuple[list[int], list[int]]]  # what follows these ids, and how often


def made_up_sources(
    sources: Collection[SourceIds], count: int, max_length: int, seed: int
) -> list[SourceIds]:
    """`count` others, drawn from n-gram models of `sources`.

    Raises InputError if these are too few to make so many up.
    """
    generator = random.Random(seed)
    models = [(order, count_n_grams(sources, order)) for order in ORDERS]
    known, found = set(sources), dict[SourceIds, None]()
    for _ in range(20 * count):
        if len(found) == count:
            break
        source = draw(*generator.choice(models), max_length, generator)
        if source and source not in known:
            found[source] = None
    if len(found) < count:
        raise InputError(f"of {len(known)} sources only {len(found)} others were made up")
    return [*found]


def count_n_grams(sources: Collection[SourceIds], order: int) -> NGrams:
    counts: defaultdict[SourceIds, Counter[int]] = defaultdict(Counter)
    for source in sources:
        ids = (*[START] * order, *source, END)
        for end in range(order, len(ids)):
            counts[ids[end - order : end]][ids[end]] += 1
    return {context: ([*after], [*after.values()]) for context, after in counts.items()}


def draw(
    order: int, n_grams: NGrams, max_length: int, generator: random.Random
) -> SourceIds | None:
    """A walk from START to END, if that takes no more than `max_length` ids."""
    ids = [START] * order
    for _ in range(max_length + 1):
        ids += generator.choices(*n_grams[tuple(ids[-order:])])
        if ids[-1] == END:
            return tuple(ids[order:-1])
    return None


def answer(
    teachers: Sequence[Transformer], sources: Sequence[SourceIds], max_new_tokens: int
) -> list[Example]:
    """The teachers' greedy answers with the probabilities that led to them, shortest sources first.

    Those that do not end are left out.
    """
    config = teachers[0].config
    answers: list[Example] = []
    for chunk in like_lengths(sources, len, "answering made-up sources"):
        source_ids, source_length = pad(chunk, config.pad_id)
        next_ids, next_probs = greedy(teachers, source_ids, source_length, max_new_tokens)
        for source, ids, probs in zip(chunk, next_ids.tolist(), next_probs.half(), strict=True):
            if config.eos_id in ids:
                end = ids.index(config.eos_id)
                answers.append(Example([*source], ids[:end], probs[: end + 1].clone()))
    return answers


@torch.no_grad()
def greedy(
    teachers: Sequence[Transformer],
    source_ids: Tensor,
    source_length: Tensor,
    max_new_tokens: int,
) -> tuple[Tensor, Tensor]:
    """(B, S), (B,) -> ids (B, T), with whatever comes after eos, and probabilities (B, T, V).

    Over caches, which `generate.greedy_search`, the oracle of the tests, does without.
    """
    config, rows = teachers[0].config, source_ids.size(0)
    chosen: list[Tensor] = [torch.full((rows,), config.bos_id)]
    means: list[Tensor] = []
    ended = torch.zeros(rows, dtype=torch.bool)
    with torch.autocast(source_ids.device.type, dtype=torch.bfloat16):
        cross = [t.decoder.cross(t.encoder(source_ids, source_length)[0]) for t in teachers]
        caches = [t.empty_cache(rows, 0) for t in teachers]
        while len(means) < max_new_tokens and not ended.all():
            position = torch.full((rows,), len(means))
            said: list[Tensor] = []  # (B, V) of each teacher
            for i, teacher in enumerate(teachers):
                cache = [one_longer(own) for own in caches[i]]
                decoded = teacher.decoder.step(chosen[-1], position, cache, cross[i], source_length)
                caches[i] = decoded.cache
                said.append(teacher.log_probs(decoded.hidden).float().exp())
            means.append(torch.stack(said).mean(0))
            chosen.append(means[-1].argmax(-1))
            ended |= chosen[-1] == config.eos_id
    return torch.stack(chosen[1:], 1), torch.stack(means, 1)


def one_longer(cache: KeysValues) -> KeysValues:
    """(R, H, T, D) -> (R, H, T + 1, D), in what the projections give under autocast."""
    keys, values = (functional.pad(x.bfloat16(), (0, 0, 0, 1)) for x in cache)
    return KeysValues(keys, values)


@torch.no_grad()
def teach(
    teachers: Sequence[Transformer], examples: Sequence[Example], label_smoothing: float
) -> list[Example]:
    """Each with the probabilities of what comes next: half its own, smoothed, half the teachers'.

    The shortest sources come first.
    """
    taught: list[Example] = []
    for chunk in like_lengths(examples, lambda e: len(e.source_ids), "asking about the pairs"):
        batch = collate(chunk, teachers[0].config)
        inputs = batch.source_ids, batch.source_length, batch.target_ids, batch.target_length
        with torch.autocast(batch.source_ids.device.type, dtype=torch.bfloat16):
            said = torch.stack([teacher(*inputs).float().exp() for teacher in teachers]).mean(0)
        size = said.size(-1)
        own = functional.one_hot(batch.next_ids, size) * (1 - label_smoothing)
        next_probs = ((own + label_smoothing / size + said) / 2).half()  # (B, T, V)
        for example, probs in zip(chunk, next_probs, strict=True):
            own_probs = probs[: len(example.target_ids) + 1].clone()
            taught.append(replace(example, next_probs=own_probs))
    return taught


def like_lengths(
    rows: Sequence[Row], length: Callable[[Row], int], doing: str
) -> Iterator[list[Row]]:
    """All rows, in batches of like lengths, with a bar of progress."""
    ordered = sorted(rows, key=length)
    for start in track(range(0, len(ordered), BATCH_SIZE), doing):
        yield ordered[start : start + BATCH_SIZE]
