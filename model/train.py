"""Train a Transformer on pairs of texts. A run that was stopped goes on from its last epoch."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import Progress
from torch import Tensor
from torch.nn.functional import cross_entropy

from model.checkpoint import WEIGHTS, average_weights, load_config, load_tokenizers, save_weights
from model.config import InputError
from model.data import (
    Batch,
    Example,
    encode_pairs,
    join_examples,
    read_pairs,
    shuffled_batches,
)
from model.transformer import Transformer

CHECKPOINT = "checkpoint.pt"
LOSSES = "losses.tsv"
OPTIONS = "training.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    epochs: int
    batch_size: int
    learning_rate: float  # at the top of the schedule
    warmup: float  # share of all steps, linear; a cosine to 0 follows
    weight_decay: float
    label_smoothing: float
    joined: float  # share of the examples that an epoch joins in threes
    average: int  # the last epochs whose weights are averaged
    seed: int


def learning_rate(progress: float, options: TrainingOptions) -> float:
    """`progress` in [0, 1] is the share of all steps done."""
    if progress < options.warmup:
        return options.learning_rate * progress / options.warmup
    cosine = math.cos(math.pi * (progress - options.warmup) / (1 - options.warmup))
    return options.learning_rate * (1 + cosine) / 2


def loss_of(model: Transformer, batch: Batch, label_smoothing: float) -> Tensor:
    """Mean cross-entropy a target token, in nats."""
    with torch.autocast(batch.source_ids.device.type, dtype=torch.bfloat16):
        log_probs = model(
            batch.source_ids, batch.source_length, batch.target_ids, batch.target_length
        )
    return cross_entropy(  # its own log-softmax leaves log-probs as they are
        log_probs.float().flatten(0, 1),
        batch.next_ids.flatten(),
        ignore_index=model.config.pad_id,
        label_smoothing=label_smoothing,
    )


@torch.no_grad()
def mean_loss(model: Transformer, examples: Sequence[Example], batch_size: int) -> float:
    """Mean cross-entropy a target token over all examples, without smoothing or dropout."""
    model.eval()
    total, tokens = 0.0, 0
    for batch in shuffled_batches(examples, batch_size, model.config, seed=0):
        count = int(batch.target_length.sum())
        total += float(loss_of(model, batch, 0.0)) * count
        tokens += count
    return total / tokens


def train_epoch(
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    examples: Sequence[Example],
    epoch: int,
    options: TrainingOptions,
) -> Iterator[float]:
    """Yields the loss of each batch. Randomness depends on the seed and the epoch alone."""
    model.train()
    torch.manual_seed(options.seed * 1_000_003 + epoch)
    joining, order = torch.randint(2**31, (2,)).tolist()
    examples = join_examples(examples, options.joined, model.config, joining)
    per_epoch = math.ceil(len(examples) / options.batch_size)
    for i, batch in enumerate(shuffled_batches(examples, options.batch_size, model.config, order)):
        progress = (epoch + (i + 1) / per_epoch) / options.epochs
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(progress, options)
        loss = loss_of(model, batch, options.label_smoothing)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield loss.item()


def save_epoch(
    run: Path, model: Transformer, optimizer: torch.optim.Optimizer, epoch: int, average: int
) -> None:
    """Writes this epoch's weights, the average of the last ones, and the state to resume from."""
    save_weights(run / f"epoch-{epoch}.safetensors", model.state_dict())
    (run / f"epoch-{epoch - average}.safetensors").unlink(missing_ok=True)
    recent = [run / f"epoch-{e}.safetensors" for e in range(max(0, epoch - average + 1), epoch + 1)]
    save_weights(run / WEIGHTS, average_weights(recent))
    partial = run / (CHECKPOINT + ".partial")
    state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, partial)
    partial.replace(run / CHECKPOINT)


def train(run: Path, train_path: Path, dev_path: Path, options: TrainingOptions) -> None:
    """Train the model of `run` (config.json and tokenizers) and leave model.safetensors there."""
    config = load_config(run)
    source, target = load_tokenizers(run)
    examples = encode_pairs(read_pairs(train_path), source, target, config)
    dev = encode_pairs(read_pairs(dev_path), source, target, config)
    torch.manual_seed(options.seed)
    model = Transformer(config)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=0.0,
        betas=(0.9, 0.98),
        weight_decay=options.weight_decay,
        fused=True,
    )
    first = 0
    if (run / CHECKPOINT).exists():
        state = torch.load(run / CHECKPOINT, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1
    if first == options.epochs:
        raise InputError(f"{run} is trained already, for {first} epochs")
    with Progress() as progress:
        for epoch in range(first, options.epochs):
            bar = progress.add_task(f"epoch {epoch + 1}/{options.epochs}", total=len(examples))
            losses: list[float] = []
            for loss in train_epoch(model, optimizer, examples, epoch, options):
                losses.append(loss)
                progress.advance(bar, options.batch_size)
            progress.update(bar, completed=len(examples))  # joined ones are fewer
            train_loss = sum(losses) / len(losses)
            dev_loss = mean_loss(model, dev, options.batch_size)
            save_epoch(run, model, optimizer, epoch, options.average)
            with (run / LOSSES).open("a") as file:
                file.write(f"{epoch + 1}\t{train_loss:.4f}\t{dev_loss:.4f}\n")
            progress.console.print(
                f"epoch {epoch + 1}: train loss {train_loss:.4f}, dev loss {dev_loss:.4f}"
            )
