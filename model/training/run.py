"""A training run on disk: its options, soft labels and checkpoints, and how it is resumed."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from model.checkpoint import (
    DAMAGED,
    WEIGHTS,
    average_weights,
    create_run,
    load_config,
    load_model,
    load_tokenizers,
    parse_json,
    replace_whole,
    save_weights,
)
from model.data.pairs import Example, read_pairs
from model.data.tokenizers import Case, Unit, build_tokenizer, case_of, unit_of
from model.network.config import InputError, TransformerConfig
from model.network.transformer import Transformer
from model.training.teachers import add_soft_labels, label_sources, synthetic_sources

CHECKPOINT = "checkpoint.pt"
LOSSES = "losses.tsv"
OPTIONS = "training.json"
SOFT_LABELS = "soft-labels.pt"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    epochs: int
    batch_size: int
    learning_rate: float  # the peak of the schedule
    warmup: float  # share of all steps, linear; a cosine to 0 follows
    weight_decay: float
    label_smoothing: float
    concatenated: float  # share of the examples that an epoch concatenates in threes
    average: int  # number of last epochs whose weights are averaged
    seed: int
    pairs_sha256: str  # SHA-256 of the file of training pairs
    start: str | None  # a run or bundle whose weights are the initial ones
    teachers: list[str]  # runs or bundles
    synthetic_sources: float  # for each source of the pairs


def find_device() -> torch.device:
    """Return the GPU if torch finds one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def hash_pairs(path: Path) -> str:
    """Return the hexadecimal SHA-256 of the file: a run is resumed with the same pairs only."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitting:
    """How the texts of a new model are split. `model.data.tokenizers.Unit` says which unit has a
    case to keep, and which a vocabulary of a chosen size."""

    source_unit: Unit
    target_unit: Unit
    case: Case
    vocabulary_size: int


def choose_tokenizers(
    pairs: Path, wanted: Splitting, options: TrainingOptions
) -> tuple[Tokenizer, Tokenizer]:
    """Return the tokenizers of the start model or the teachers; if there is neither, build them.
    Raise InputError if one of the models cannot be loaded."""
    if models := [load_model(path) for path in models_of(options)]:
        return models[0].source_tokenizer, models[0].target_tokenizer
    sources, targets = zip(*read_pairs(pairs), strict=True)
    same = wanted.case, wanted.vocabulary_size
    return (
        build_tokenizer(sources, wanted.source_unit, *same),
        build_tokenizer(targets, wanted.target_unit, *same),
    )


def models_of(options: TrainingOptions) -> list[Path]:
    """Return the run or bundle to start from, if any, and the teachers."""
    return [Path(path) for path in [*filter(None, [options.start]), *options.teachers]]


def open_run(
    run: Path,
    config: TransformerConfig,
    options: TrainingOptions,
    tokenizers: tuple[Tokenizer, Tokenizer],
) -> None:
    """Create the run or, if it `has_learned`, check that it was started with the same settings.

    Raise InputError, before anything is written, if settings contradict each other or the run.
    """
    check_models(config, options)
    if run.exists() and any(run.iterdir()) and not (run / OPTIONS).exists():
        raise InputError(f"{run} is neither empty nor a training run: name another folder")
    if has_learned(run):
        check_same_settings(run, config, options, tokenizers)
    else:
        run.mkdir(parents=True, exist_ok=True)
        (run / OPTIONS).write_text(json.dumps(asdict(options), indent=2) + "\n")
        create_run(run, config, *tokenizers)


def check_models(config: TransformerConfig, options: TrainingOptions) -> None:
    """Raise InputError unless the start model and the teachers fit each other and `config`.

    All must share one vocabulary, because soft labels are probabilities of its tokens.
    """
    if options.synthetic_sources and not options.teachers:
        raise InputError("--synthetic-sources needs a --teacher to label the synthetic sources")
    models = models_of(options)
    vocabularies = [[tokenizer.to_str() for tokenizer in load_tokenizers(m)] for m in models]
    for model, own in zip(models, vocabularies, strict=True):
        if own != vocabularies[0]:
            raise InputError(
                f"{model} and {models[0]} have different tokenizers: give models that share one"
            )
    if options.start:
        shape = asdict(replace(load_config(Path(options.start)), dropout=config.dropout))
        if different := describe_changes(shape, asdict(config)):
            raise InputError(
                f"--start {options.start} has {different}: give the same values as that model"
            )
    for path in options.teachers:
        teacher = load_config(Path(path))
        lengths = teacher.max_source_length, teacher.max_target_length
        if lengths[0] < config.max_source_length or lengths[1] < config.max_target_length:
            raise InputError(
                f"--teacher {path} takes at most {lengths[0]} source and {lengths[1]} target"
                " tokens: lower --max-source-length or --max-target-length"
            )


def has_learned(run: Path) -> bool:
    """Return whether the run has saved a checkpoint, soft labels or weights.

    If so, its pairs and options can no longer change.
    """
    return any((run / name).exists() for name in (CHECKPOINT, SOFT_LABELS, WEIGHTS))


def check_same_settings(
    run: Path,
    config: TransformerConfig,
    options: TrainingOptions,
    tokenizers: tuple[Tokenizer, Tokenizer],
) -> None:
    """Raise InputError if the run was started with other pairs, units, options or network.

    Pairs and units are checked first: other ones also change the vocabulary sizes, and an error
    about sizes would hide the cause.
    """
    advice = "give the same or name another run"
    started = parse_json((run / OPTIONS).read_bytes(), run / OPTIONS)
    if started.get("pairs_sha256") != options.pairs_sha256:
        raise InputError(f"{run} was started with other pairs (another SHA-256): {advice}")
    for side, old, new in zip(("source", "target"), load_tokenizers(run), tokenizers, strict=True):
        if unit_of(old) is not unit_of(new):
            raise InputError(f"{run} was started with --{side}-unit {unit_of(old)}: {advice}")
        if case_of(old) is not case_of(new):
            raise InputError(f"{run} was started with --case {case_of(old)}: {advice}")
    found = asdict(load_config(run)) | started
    if different := describe_changes(found, asdict(config) | asdict(options)):
        raise InputError(f"{run} was started with {different}: {advice}")


def describe_changes(found: Mapping[str, object], wanted: Mapping[str, object]) -> str:
    """Describe the wanted keys whose values differ; empty if none do."""
    return "; ".join(
        f"{name} {found.get(name)}, not {value}"
        for name, value in wanted.items()
        if found.get(name) != value
    )


def load_soft_labels(
    run: Path, examples: Sequence[Example], config: TransformerConfig, options: TrainingOptions
) -> list[Example]:
    """Return the student's examples: the pairs and the synthetic sources, with soft labels.

    The teachers label them once. The run keeps the labels, so that a resumed training is the same
    even if a teacher has changed.
    """
    path = run / SOFT_LABELS
    if not path.exists():
        write_soft_labels(path, examples, config, options)
    source_ids, target_ids, soft_labels = load_pickle(path)
    each = soft_labels.split([len(ids) + 1 for ids in target_ids])
    return [Example(*fields) for fields in zip(source_ids, target_ids, each, strict=True)]


def load_pickle(path: Path) -> Any:
    """Load what torch saved in a run. Raise InputError if the file is damaged."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except PermissionError:
        raise  # it may be whole
    except DAMAGED as error:
        raise InputError(
            f"{path} is damaged: remove it, and repeat the command to make it again"
        ) from error


def write_soft_labels(
    path: Path, examples: Sequence[Example], config: TransformerConfig, options: TrainingOptions
) -> None:
    """Store the teachers' labels: 2 bytes for every token of the vocabulary at every position."""
    teachers = [
        load_model(Path(teacher)).transformer.to(find_device()) for teacher in options.teachers
    ]
    known = {tuple(example.source_ids) for example in examples}
    count = round(options.synthetic_sources * len(known))
    sources = synthetic_sources(known, count, config.max_source_length, options.seed)
    synthetic = label_sources(teachers, sources, config.max_target_length)
    labelled = add_soft_labels(teachers, examples, options.label_smoothing) + synthetic
    soft_labels = torch.cat([e.soft_labels for e in labelled if e.soft_labels is not None])
    stored = [e.source_ids for e in labelled], [e.target_ids for e in labelled], soft_labels
    replace_whole(path, lambda partial: torch.save(stored, partial))


def save_epoch(
    run: Path, model: Transformer, optimizer: torch.optim.Optimizer, epoch: int, average: int
) -> None:
    """Write the epoch's weights, the mean of the last `average` epochs, and the checkpoint.

    The checkpoint is written last: without it, the epoch does not count as finished.
    """
    save_weights(run / f"epoch-{epoch}.safetensors", model.state_dict())
    (run / f"epoch-{epoch - average}.safetensors").unlink(missing_ok=True)
    recent = [run / f"epoch-{e}.safetensors" for e in range(max(0, epoch - average + 1), epoch + 1)]
    save_weights(run / WEIGHTS, average_weights(recent))
    state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    replace_whole(run / CHECKPOINT, lambda partial: torch.save(state, partial))


def resume(run: Path, model: Transformer, optimizer: torch.optim.Optimizer) -> int:
    """Restore the model and the optimizer; return the number of finished epochs.

    Losses of an epoch that was interrupted before its checkpoint are removed.
    """
    epochs = 0
    if (run / CHECKPOINT).exists():
        state = load_pickle(run / CHECKPOINT)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        epochs = state["epoch"] + 1
    if (run / LOSSES).exists():
        lines = (run / LOSSES).read_text().splitlines(keepends=True)[:epochs]
        replace_whole(run / LOSSES, lambda partial: partial.write_text("".join(lines)))
    return epochs
