"""Train a Transformer on pairs of texts. A run that was stopped goes on from its last epoch."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from rich.progress import Progress
from torch import Tensor
from torch.nn.functional import cross_entropy

from model.checkpoint import (
    WEIGHTS,
    average_weights,
    load_config,
    load_model,
    load_tokenizers,
    replace_whole,
    save_weights,
)
from model.data.pairs import (
    Batch,
    Example,
    encode_pairs,
    join_examples,
    read_pairs,
    refuse_specials,
    shuffled_batches,
)
from model.network.config import InputError, TransformerConfig
from model.network.transformer import Transformer
from model.training.teachers import answer, made_up_sources, teach

CHECKPOINT = "checkpoint.pt"
LESSONS = "lessons.pt"
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
    pairs_sha256: str  # of the file that the run was started with
    start: str | None  # a run or bundle whose weights are the first
    teachers: list[str]  # runs or bundles
    made_up: float  # sources that only teachers answer, for each of the pairs'


def learning_rate(progress: float, options: TrainingOptions) -> float:
    """`progress` in [0, 1] is the share of all steps done."""
    if progress < options.warmup:
        return options.learning_rate * progress / options.warmup
    cosine = math.cos(math.pi * (progress - options.warmup) / (1 - options.warmup))
    return options.learning_rate * (1 + cosine) / 2


def loss_of(model: Transformer, batch: Batch, label_smoothing: float) -> Tensor:
    """Mean cross-entropy a target token, in nats: with `next_probs`, if any, or the targets."""
    with torch.autocast(batch.source_ids.device.type, dtype=torch.bfloat16):
        log_probs = model(
            batch.source_ids, batch.source_length, batch.target_ids, batch.target_length
        )
    if batch.next_probs is not None:
        return -(batch.next_probs * log_probs.float()).sum() / batch.target_length.sum()
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
    state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    replace_whole(run / CHECKPOINT, lambda partial: torch.save(state, partial))


def differences(found: Mapping[str, object], wanted: Mapping[str, object]) -> str:
    """What is found where something else is wanted; nothing where all is as wanted."""
    return "; ".join(
        f"{name} {found.get(name)}, not {value}"
        for name, value in wanted.items()
        if found.get(name) != value
    )


def check_others(config: TransformerConfig, options: TrainingOptions) -> None:
    """Raises InputError if those to start and to learn from have other tokens or do not fit."""
    if options.made_up and not options.teachers:
        raise InputError("--made-up needs a --teacher to answer")
    paths = [*filter(None, [options.start]), *options.teachers]
    tokens = [[tokenizer.to_str() for tokenizer in load_tokenizers(Path(p))] for p in paths]
    for path, own in zip(paths, tokens, strict=True):
        if own != tokens[0]:
            raise InputError(f"{path} has other tokens than {paths[0]}")
    if options.start:
        shape = asdict(replace(load_config(Path(options.start)), dropout=config.dropout))
        if different := differences(shape, asdict(config)):
            raise InputError(f"--start {options.start} has {different}")
    for path in options.teachers:
        teacher = load_config(Path(path))
        lengths = teacher.max_source_length, teacher.max_target_length
        if lengths[0] < config.max_source_length or lengths[1] < config.max_target_length:
            most = f"at most {lengths[0]} source and {lengths[1]} target tokens"
            raise InputError(f"--teacher {path} takes {most}")


def write_lessons(
    path: Path, examples: Sequence[Example], config: TransformerConfig, options: TrainingOptions
) -> None:
    """What the teachers say of `examples` and of made-up sources: 2 bytes for every token of the
    vocabulary at every position."""
    teachers = [load_model(Path(teacher)).transformer for teacher in options.teachers]
    sources = {tuple(example.source_ids) for example in examples}
    count = round(options.made_up * len(sources))
    made_up = made_up_sources(sources, count, config.max_source_length, options.seed)
    answers = answer(teachers, made_up, config.max_target_length)
    taught = teach(teachers, examples, options.label_smoothing) + answers
    next_probs = torch.cat([e.next_probs for e in taught if e.next_probs is not None])
    lessons = [e.source_ids for e in taught], [e.target_ids for e in taught], next_probs
    replace_whole(path, lambda partial: torch.save(lessons, partial))


def read_lessons(path: Path) -> list[Example]:
    source_ids, target_ids, next_probs = torch.load(path, weights_only=True)
    each = next_probs.split([len(ids) + 1 for ids in target_ids])
    return [Example(*fields) for fields in zip(source_ids, target_ids, each, strict=True)]


def has_learned(run: Path) -> bool:
    """Whether it keeps anything that came of its pairs and options: they must be the same then."""
    return any((run / name).exists() for name in (CHECKPOINT, LESSONS, WEIGHTS))


def resume(run: Path, model: Transformer, optimizer: torch.optim.Optimizer) -> int:
    """The epochs behind it, all that was learned in them put back, and no loss of another kept."""
    epochs = 0
    if (run / CHECKPOINT).exists():
        state = torch.load(run / CHECKPOINT, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        epochs = state["epoch"] + 1
    if (run / LOSSES).exists():  # it may be an epoch ahead
        lines = (run / LOSSES).read_text().splitlines(keepends=True)[:epochs]
        replace_whole(run / LOSSES, lambda partial: partial.write_text("".join(lines)))
    return epochs


def train(run: Path, train_path: Path, dev_path: Path, options: TrainingOptions) -> None:
    """Train the model of `run` (config.json and tokenizers) and leave model.safetensors there.
    What is trained stays as it is.

    What teachers say of the pairs is kept there too: from then on the run learns from that.
    """
    config = load_config(run)
    source, target = load_tokenizers(run)
    pairs = read_pairs(train_path)
    examples = encode_pairs(pairs, source, target, config)
    refuse_specials(pairs, source, target)
    dev = encode_pairs(read_pairs(dev_path), source, target, config)
    torch.manual_seed(options.seed)
    model = Transformer(config)
    if options.start:
        model.load_state_dict(load_model(Path(options.start)).transformer.state_dict())
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=0.0,
        betas=(0.9, 0.98),
        weight_decay=options.weight_decay,
        fused=True,
    )
    first = resume(run, model, optimizer)
    if first == options.epochs:
        return
    if options.teachers:
        if not (run / LESSONS).exists():
            write_lessons(run / LESSONS, examples, config, options)
        examples = read_lessons(run / LESSONS)
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
            with (run / LOSSES).open("a") as file:
                file.write(f"{epoch + 1}\t{train_loss:.4f}\t{dev_loss:.4f}\n")
            save_epoch(run, model, optimizer, epoch, options.average)
            progress.console.print(
                f"epoch {epoch + 1}: train loss {train_loss:.4f}, dev loss {dev_loss:.4f}"
            )
