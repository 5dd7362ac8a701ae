"""Train a sequence-to-sequence model of Hugging Face, and save it as `save_pretrained` does."""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch
import typer
from torch.nn.utils import clip_grad_norm_
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
)

from examples.ledger.lines import Line, lines
from examples.ledger.vocabulary import NAMES

HELD_OUT, TEXTS = 2_000, 200  # lines
BATCH, POOL = 128, 50  # lines in a batch, and batches among which lines are sorted by length
LEARNING_RATE = 2e-2  # of the size of a matrix
CARD = """---
license: cc0-1.0
language: [en, fr, de, es]
pipeline_tag: translation
---
# Lines of a ledger

Reads English lines with figures and writes them in French, German or Spanish, all in words.
"""

Pair = tuple[list[int], list[int]]  # ids of the source and of the target
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # source ids and mask (B, S), labels (B, T)


def train(
    folder: Path,
    write_vocabulary: Callable[[Path, Sequence[Line]], str],
    count: int,
    epochs: int,
    seed: int,
) -> None:
    """Write the checkpoint, and lines it has never seen: held_out.tsv, and texts.tsv for the
    proofs of `convert`."""
    folder.mkdir(parents=True)
    drawn = lines(seed)
    unique = list(dict.fromkeys(islice(drawn, count + HELD_OUT)))
    seen, held_out = unique[:-HELD_OUT], unique[-HELD_OUT:]
    texts = {*islice(drawn, TEXTS)} - {*unique}
    prefix = write_vocabulary(folder, seen)
    torch.manual_seed(seed)
    model = AutoModelForSeq2SeqLM.from_config(AutoConfig.from_pretrained(folder))
    model.generation_config = GenerationConfig.from_pretrained(folder)
    fit(model, encode(folder, prefix, seen), epochs, random.Random(seed))
    model.save_pretrained(folder)
    (folder / "README.md").write_text(CARD, encoding="utf-8")
    write_lines(folder / "held_out.tsv", held_out, prefix)
    typed = "" if prefix.startswith(">>") else prefix  # a request names the language of Marian
    write_lines(folder / "texts.tsv", sorted(texts), typed)


def write_lines(path: Path, chosen: Sequence[Line], prefix: str) -> None:
    rows = (f"{with_prefix(prefix, line)}\t{line.translation}\n" for line in chosen)
    path.write_text("".join(rows), encoding="utf-8")


def with_prefix(prefix: str, line: Line) -> str:
    return prefix.format(language=line.language, name=NAMES[line.language]) + line.english


def encode(folder: Path, prefix: str, read: Sequence[Line]) -> list[Pair]:
    """Return the ids of sources and of targets."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    sources = [with_prefix(prefix, line) for line in read]
    ids = tokenizer(sources, text_target=[line.translation for line in read])
    return list(zip(ids["input_ids"], ids["labels"], strict=True))


def fit(model: PreTrainedModel, pairs: list[Pair], epochs: int, chance: random.Random) -> None:
    """Train with Adafactor, whose steps suit T5's large embeddings, and one cycle of its rate."""
    steps = epochs * -(-len(pairs) // BATCH)
    optimizer = torch.optim.Adafactor(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=steps, pct_start=0.1, cycle_momentum=False
    )
    model.train()
    for epoch in range(epochs):
        total = count = 0
        for source, mask, labels in batches(pairs, model.config.pad_token_id, chance):
            loss = model(input_ids=source, attention_mask=mask, labels=labels).loss
            loss.backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            total, count = total + loss.item(), count + 1
        typer.echo(f"epoch {epoch + 1} of {epochs}: loss {total / count:.4f}")
    model.eval()


def batches(pairs: list[Pair], pad_id: int, chance: random.Random) -> Iterator[Batch]:
    """Yield all pairs in random order, those of like length together."""
    pairs = chance.sample(pairs, len(pairs))
    for start in range(0, len(pairs), BATCH * POOL):
        pool = sorted(pairs[start : start + BATCH * POOL], key=lambda pair: len(pair[1]))
        cuts = [pool[first : first + BATCH] for first in range(0, len(pool), BATCH)]
        for cut in chance.sample(cuts, len(cuts)):
            source = rectangle([source for source, _ in cut], pad_id)
            labels = rectangle([target for _, target in cut], -100)  # not counted in the loss
            yield source, (source != pad_id).long(), labels


def rectangle(rows: Sequence[list[int]], fill: int) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [fill] * (width - len(row)) for row in rows])
