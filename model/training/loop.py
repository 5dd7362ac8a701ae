"""Train a Transformer: the schedule, the loss, an epoch, and the loop over epochs."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import typer
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy

from model.checkpoint import load_config, load_model, load_tokenizers, save_examples
from model.data.pairs import (
    Example,
    TrainingBatch,
    concatenate_examples,
    describe_normalized,
    encode_pairs,
    find_special_tokens,
    read_pair_file,
    refuse_special_tokens,
    shuffled_batches,
)
from model.data.tokenizers import SPECIALS, unit_of
from model.network.transformer import Transformer
from model.training.progress import follow
from model.training.run import (
    LOSSES,
    TrainingOptions,
    find_device,
    load_soft_labels,
    resume,
    save_epoch,
)

SIDES = ("sources", "targets")


def learning_rate(progress: float, options: TrainingOptions) -> float:
    """Return the learning rate after `progress` of all steps, a share in [0, 1]."""
    if progress < options.warmup:
        return options.learning_rate * progress / options.warmup
    cosine = math.cos(math.pi * (progress - options.warmup) / (1 - options.warmup))
    return options.learning_rate * (1 + cosine) / 2


def batch_loss(model: Transformer, batch: TrainingBatch, label_smoothing: float) -> Tensor:
    """Return the mean cross-entropy per target token in nats: with soft labels if the batch has
    them, with its targets otherwise."""
    with torch.autocast(batch.source_ids.device.type, dtype=torch.bfloat16):
        log_probs = model(
            batch.source_ids, batch.source_length, batch.target_ids, batch.target_length
        )  # (B, T, V)
    if batch.soft_labels is not None:
        return -(batch.soft_labels * log_probs.float()).sum() / batch.target_length.sum()
    return cross_entropy(  # its log-softmax leaves log-probs unchanged
        log_probs.float().flatten(0, 1),
        batch.next_ids.flatten(),
        ignore_index=model.config.pad_id,
        label_smoothing=label_smoothing,
    )


@torch.no_grad()
def mean_loss(model: Transformer, examples: Sequence[Example], batch_size: int) -> float:
    """Return the mean cross-entropy per target token of all examples, without smoothing or
    dropout."""
    model.eval()
    total, tokens = 0.0, 0
    for batch in shuffled_batches(examples, batch_size, model.config, seed=0):
        count = int(batch.target_length.sum())
        total += float(batch_loss(model, batch.to(model.device), 0.0)) * count
        tokens += count
    return total / tokens


def train_epoch(
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    examples: Sequence[Example],
    epoch: int,
    options: TrainingOptions,
) -> Iterator[float]:
    """Train for one epoch and yield the loss of each batch.

    Randomness depends on the seed and the epoch alone, so that an interruption changes nothing.
    """
    model.train()
    torch.manual_seed(options.seed * 1_000_003 + epoch)
    concatenation_seed, order_seed = torch.randint(2**31, (2,)).tolist()
    examples = concatenate_examples(
        examples, options.concatenated, model.config, concatenation_seed
    )
    per_epoch = math.ceil(len(examples) / options.batch_size)
    batches = shuffled_batches(examples, options.batch_size, model.config, order_seed)
    for i, batch in enumerate(batches):
        progress = (epoch + (i + 1) / per_epoch) / options.epochs
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(progress, options)
        loss = batch_loss(model, batch.to(model.device), options.label_smoothing)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield loss.item()


def train(run: Path, train_path: Path, dev_path: Path, options: TrainingOptions) -> None:
    """Train the model that config.json and the tokenizers of `run` define.

    Writes model.safetensors to `run`. Finished epochs are not repeated, so a finished run
    does not change.
    """
    examples, dev = load_examples(run, train_path, dev_path)
    model, optimizer = build_model(run, options)
    finished = resume(run, model, optimizer)
    if finished == options.epochs:
        return
    if finished:
        typer.echo(f"resuming after epoch {finished} of {options.epochs}")
    if options.teachers:
        typer.echo("labelling the pairs with the teachers, unless the run has the labels already")
        examples = load_soft_labels(run, examples, model.config, options)
    for epoch in range(finished, options.epochs):
        batches = train_epoch(model, optimizer, examples, epoch, options)
        name = f"epoch {epoch + 1} of {options.epochs}"
        losses = follow(batches, name, len(examples), options.batch_size)
        train_loss = sum(losses) / len(losses)
        dev_loss = mean_loss(model, dev, options.batch_size)
        with (run / LOSSES).open("a") as file:
            file.write(f"{epoch + 1}\t{train_loss:.4f}\t{dev_loss:.4f}\n")
        save_epoch(run, model, optimizer, epoch, options.average)
        typer.echo(f"epoch {epoch + 1}: train loss {train_loss:.4f}, dev loss {dev_loss:.4f}")


def load_examples(
    run: Path, train_path: Path, dev_path: Path
) -> tuple[list[Example], list[Example]]:
    """Return the encoded training and dev pairs.

    Raise InputError if a training text contains a special token, such as <unk> for an unknown
    symbol. Dev texts may contain some, as texts in use do. They increase the dev loss, so a note
    counts them. Another counts the training texts that normalization changes. The run gets some of
    the training sources as the examples of its model.
    """
    config, tokenizers = load_config(run), load_tokenizers(run)
    pairs, dev = read_pair_file(train_path), read_pair_file(dev_path)
    typer.echo(f"{len(pairs.pairs)} pairs in {train_path}, {len(dev.pairs)} in {dev_path}")
    typer.echo(f"vocabulary: {', '.join(map(describe_vocabulary, SIDES, tokenizers))}")
    for text in describe_normalized(pairs, *tokenizers):
        note(text)
    examples = encode_pairs(pairs, *tokenizers, config)
    refuse_special_tokens(pairs, *tokenizers)
    save_examples(run, [source for source, _ in pairs.pairs])
    if problems := list(find_special_tokens(dev, *tokenizers)):
        note(
            f"{len(problems)} dev texts have symbols without a token of their own, which"
            f" raises the dev loss; the first is {problems[0]}"
        )
    return examples, encode_pairs(dev, *tokenizers, config)


def describe_vocabulary(side: str, tokenizer: Tokenizer) -> str:
    return f"{tokenizer.get_vocab_size() - len(SPECIALS)} {unit_of(tokenizer)} of {side}"


def note(text: str) -> None:
    typer.echo(f"note: {text}")


def build_model(run: Path, options: TrainingOptions) -> tuple[Transformer, torch.optim.Optimizer]:
    """Return a model with its initial weights (of `start`, else random), and its optimizer.

    The model is on the GPU if torch finds one.
    """
    torch.manual_seed(options.seed)
    model = Transformer(load_config(run))
    if options.start:
        model.load_state_dict(load_model(Path(options.start)).transformer.state_dict())
    model.to(find_device())
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=0.0,  # train_epoch sets it for each step
        betas=(0.9, 0.98),
        weight_decay=options.weight_decay,
        fused=True,
    )
    return model, optimizer
