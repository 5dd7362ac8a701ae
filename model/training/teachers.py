"""Knowledge distillation: an ensemble of teachers labels examples for a student to learn.

Soft labels (Hinton et al. 2015) are the teachers' probabilities; they carry more information than
the pairs. Teachers overfit their training pairs, so labels of other sources help most: synthetic
sources, which only the teachers label (Kim & Rush 2016).
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
from model.network.attention import KeysValues
from model.network.config import InputError
from model.network.ssru import State
from model.network.transformer import LayerCache, Transformer

ORDERS = (3, 4, 5)  # context lengths of the n-gram models of sources
START, END = -1, -2  # not in any vocabulary
LABELLING_BATCH_SIZE = 512

Row = TypeVar("Row")
SourceIds = tuple[int, ...]
NGrams = dict[SourceIds, tuple[list[int], list[int]]]  # context -> next ids and their counts


def synthetic_sources(
    sources: Collection[SourceIds], count: int, max_length: int, seed: int
) -> list[SourceIds]:
    """Sample `count` different sources, none in `sources`, from n-gram models of `sources`.

    Raise InputError if `sources` are too few to yield that many.
    """
    generator = random.Random(seed)
    models = [(order, count_n_grams(sources, order)) for order in ORDERS]
    known, found = set(sources), dict[SourceIds, None]()  # a dict keeps the order
    for _ in range(20 * count):
        if len(found) == count:
            break
        source = sample_source(*generator.choice(models), max_length, generator)
        if source and source not in known:
            found[source] = None
    if len(found) < count:
        raise InputError(
            f"only {len(found)} of {count} synthetic sources could be sampled from {len(known)}"
            " sources: lower --synthetic-sources or train on more pairs"
        )
    return [*found]


def count_n_grams(sources: Collection[SourceIds], order: int) -> NGrams:
    """Count which ids follow each context of `order` ids. START pads each source, END ends it."""
    counts: defaultdict[SourceIds, Counter[int]] = defaultdict(Counter)
    for source in sources:
        ids = (*[START] * order, *source, END)
        for end in range(order, len(ids)):
            counts[ids[end - order : end]][ids[end]] += 1
    return {context: ([*after], [*after.values()]) for context, after in counts.items()}


def sample_source(
    order: int, n_grams: NGrams, max_length: int, generator: random.Random
) -> SourceIds | None:
    """Sample one id after another until END; return None after more than `max_length` ids."""
    ids = [START] * order
    for _ in range(max_length + 1):
        ids += generator.choices(*n_grams[tuple(ids[-order:])])
        if ids[-1] == END:
            return tuple(ids[order:-1])
    return None


def label_sources(
    teachers: Sequence[Transformer], sources: Sequence[SourceIds], max_new_tokens: int
) -> list[Example]:
    """Return sources with the ensemble's greedy outputs and soft labels, the shortest first.

    Sources whose output does not end within `max_new_tokens` are left out.
    """
    config = teachers[0].config
    labelled: list[Example] = []
    for chunk in batches_by_length(sources, len, "labelling synthetic sources"):
        source_ids, source_length = (x.to(teachers[0].device) for x in pad(chunk, config.pad_id))
        next_ids, probs = ensemble_greedy_search(
            teachers, source_ids, source_length, max_new_tokens
        )
        for source, ids, labels in zip(chunk, next_ids.tolist(), probs.half().cpu(), strict=True):
            if config.eos_id in ids:
                end = ids.index(config.eos_id)
                # clone() frees the memory of the batch's other rows and positions
                labelled.append(Example([*source], ids[:end], labels[: end + 1].clone()))
    return labelled


@torch.no_grad()
def ensemble_greedy_search(
    teachers: Sequence[Transformer],
    source_ids: Tensor,
    source_length: Tensor,
    max_new_tokens: int,
) -> tuple[Tensor, Tensor]:
    """Return ids (B, T) and probabilities (B, T, V), the mean over the teachers.

    The ids after a row's first eos mean nothing. Unlike `model.search.greedy_search`, this function
    uses a KV cache, because hundreds of thousands of sources are labelled.
    """
    config, rows = teachers[0].config, source_ids.size(0)
    chosen: list[Tensor] = [source_ids.new_full((rows,), config.bos_id)]
    means: list[Tensor] = []
    ended = chosen[0] == config.eos_id
    with torch.autocast(source_ids.device.type, dtype=torch.bfloat16):
        cross = [t.decoder.cross(t.encoder(source_ids, source_length)[0]) for t in teachers]
        caches = [t.empty_cache(rows, 0) for t in teachers]
        while len(means) < max_new_tokens and not ended.all():
            position = source_ids.new_full((rows,), len(means))
            probs: list[Tensor] = []  # (B, V) of each teacher
            for i, teacher in enumerate(teachers):
                cache = [grow_cache(layer) for layer in caches[i]]
                decoded = teacher.decoder.step(chosen[-1], position, cache, cross[i], source_length)
                caches[i] = decoded.cache
                probs.append(teacher.log_probs(decoded.hidden).float().exp())
            means.append(torch.stack(probs).mean(0))
            chosen.append(means[-1].argmax(-1))
            ended |= chosen[-1] == config.eos_id
    return torch.stack(chosen[1:], 1), torch.stack(means, 1)


def grow_cache(cache: LayerCache) -> LayerCache:
    """(R, H, T, D) -> (R, H, T + 1, D), in bfloat16, the type of projections under autocast. A
    state stays as it is."""
    if isinstance(cache, State):
        return cache
    keys, values = (functional.pad(x.bfloat16(), (0, 0, 0, 1)) for x in cache)
    return KeysValues(keys, values)


@torch.no_grad()
def add_soft_labels(
    teachers: Sequence[Transformer], examples: Sequence[Example], label_smoothing: float
) -> list[Example]:
    """Return the examples with soft labels, the shortest sources first.

    Half of each label is the example's own target, smoothed; half is the mean of the teachers.
    """
    labelled: list[Example] = []
    for chunk in batches_by_length(examples, lambda e: len(e.source_ids), "labelling the pairs"):
        batch = collate(chunk, teachers[0].config).to(teachers[0].device)
        inputs = batch.source_ids, batch.source_length, batch.target_ids, batch.target_length
        with torch.autocast(batch.source_ids.device.type, dtype=torch.bfloat16):
            mean = torch.stack([teacher(*inputs).float().exp() for teacher in teachers]).mean(0)
        size = mean.size(-1)
        own = functional.one_hot(batch.next_ids, size) * (1 - label_smoothing)
        soft_labels = ((own + label_smoothing / size + mean) / 2).half().cpu()  # (B, T, V)
        for example, labels in zip(chunk, soft_labels, strict=True):
            unpadded = labels[: len(example.target_ids) + 1].clone()
            labelled.append(replace(example, soft_labels=unpadded))
    return labelled


def batches_by_length(
    rows: Sequence[Row], length: Callable[[Row], int], description: str
) -> Iterator[list[Row]]:
    """Yield all rows in batches of similar lengths, with a progress bar."""
    ordered = sorted(rows, key=length)
    for start in track(range(0, len(ordered), LABELLING_BATCH_SIZE), description):
        yield ordered[start : start + LABELLING_BATCH_SIZE]
