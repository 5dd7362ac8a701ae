"""python -m model train."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from model.data.tokenizers import VOCABULARY_SIZE, Case, Unit
from model.flags import PairsFile, existing_file, existing_folder, positive, share
from model.network.config import DecoderKind, NormKind, ScoreFunction, TransformerConfig
from model.training.loop import train
from model.training.run import (
    Splitting,
    TrainingOptions,
    choose_tokenizers,
    hash_pairs,
    open_run,
)

# Flags are named like the fields of TransformerConfig and TrainingOptions that they set.
DevFlag = Annotated[Path, existing_file("file like PAIRS; its loss is shown after each epoch")]
RunFlag = Annotated[
    Path,
    typer.Option(
        help="folder of the run; repeat the same command to resume it",
        file_okay=False,
    ),
]
SourceUnitFlag = Annotated[
    Unit, typer.Option(help="what a source is split into; ignored with --start or --teacher")
]
TargetUnitFlag = Annotated[
    Unit, typer.Option(help="what a target is split into; ignored with --start or --teacher")
]
CaseFlag = Annotated[
    Case,
    typer.Option(
        help="which capitals remain when texts are split into characters: none, those of words like"
        " GPU, or all; words and pieces keep theirs; ignored with --start or --teacher"
    ),
]
VocabularySizeFlag = Annotated[
    int, positive("most pieces in the vocabulary of a side whose unit is pieces")
]
DModelFlag = Annotated[int, positive("model width")]
DFfFlag = Annotated[int, positive("hidden units of a feed-forward layer")]
NumHeadsFlag = Annotated[int, positive("attention heads of a layer")]
DQkFlag = Annotated[
    int, typer.Option(help="numbers in a head's query and key; 0: d_model / num_heads", min=0)
]
DVFlag = Annotated[
    int, typer.Option(help="numbers in a head's value; 0: d_model / num_heads", min=0)
]
ScoreFlag = Annotated[ScoreFunction, typer.Option(help="how a query is compared with a key")]
NormFlag = Annotated[NormKind, typer.Option(help="kind of normalisation layer")]
EncoderLayersFlag = Annotated[int, positive("layers of the encoder")]
DecoderLayersFlag = Annotated[int, positive("layers of the decoder")]
DecoderFlag = Annotated[
    DecoderKind, typer.Option(help="how a decoder layer reads the target so far")
]
NormFirstFlag = Annotated[
    bool, typer.Option(help="normalise before each sublayer (pre-norm) or after it (post-norm)")
]
RotaryFlag = Annotated[bool, typer.Option(help="rotate queries and keys by their position")]
DropoutFlag = Annotated[
    float, typer.Option(help="share of activations dropped in training, in [0, 1)")
]
SourceLengthFlag = Annotated[int, positive("longest source, in tokens")]
TargetLengthFlag = Annotated[
    int, typer.Option(help="longest target, in tokens; bos counts as one", min=2)
]
EpochsFlag = Annotated[int, positive("passes over the pairs")]
BatchSizeFlag = Annotated[int, positive("pairs per step; use about 16 for a few hundred pairs")]
LearningRateFlag = Annotated[float, typer.Option(help="peak of the learning rate", min=0)]
WarmupFlag = Annotated[
    float, share("share of all steps used to warm up the learning rate", most=0.9)
]
WeightDecayFlag = Annotated[float, typer.Option(help="AdamW's weight decay", min=0)]
LabelSmoothingFlag = Annotated[float, share("probability spread over all tokens of the vocabulary")]
ConcatenatedFlag = Annotated[
    float, share("share of pairs concatenated, three at a time, to learn long sources")
]
AverageFlag = Annotated[int, positive("how many of the last epochs' weights are averaged")]
SeedFlag = Annotated[int, typer.Option(help="seed of all random numbers")]
StartFlag = Annotated[
    Path | None,
    existing_folder("run or bundle whose weights and tokenizers the training starts from"),
]
TeacherFlag = Annotated[
    list[Path] | None,
    existing_folder("run or bundle whose soft labels are learned; repeat it for an ensemble"),
]
SyntheticSourcesFlag = Annotated[
    float,
    typer.Option(
        help="synthetic sources to add per source of the pairs, labelled by the teachers", min=0
    ),
]


def train_command(
    pairs: PairsFile,
    dev: DevFlag,
    run: RunFlag,
    source_unit: SourceUnitFlag = Unit.characters,
    target_unit: TargetUnitFlag = Unit.words,
    case: CaseFlag = Case.lower_case,
    vocabulary_size: VocabularySizeFlag = VOCABULARY_SIZE,
    d_model: DModelFlag = 192,
    d_ff: DFfFlag = 768,
    num_heads: NumHeadsFlag = 4,
    d_qk: DQkFlag = 0,
    d_v: DVFlag = 0,
    score_function: ScoreFlag = ScoreFunction.scaled_dot_product,
    norm: NormFlag = NormKind.layer_norm,
    num_encoder_layers: EncoderLayersFlag = 4,
    num_decoder_layers: DecoderLayersFlag = 3,
    decoder: DecoderFlag = DecoderKind.self_attention,
    norm_first: NormFirstFlag = True,
    rotary: RotaryFlag = True,
    dropout: DropoutFlag = 0.15,
    max_source_length: SourceLengthFlag = 64,
    max_target_length: TargetLengthFlag = 64,
    epochs: EpochsFlag = 50,
    batch_size: BatchSizeFlag = 256,
    learning_rate: LearningRateFlag = 1.2e-3,
    warmup: WarmupFlag = 0.05,
    weight_decay: WeightDecayFlag = 0.02,
    label_smoothing: LabelSmoothingFlag = 0.1,
    concatenated: ConcatenatedFlag = 0.02,
    average: AverageFlag = 5,
    seed: SeedFlag = 0,
    start: StartFlag = None,
    teacher: TeacherFlag = None,
    synthetic_sources: SyntheticSourcesFlag = 0.0,
) -> None:
    """Train a model on pairs of texts, or resume a training that was interrupted.

    The defaults train the first teacher of the pronunciation model that Heed ships.
    """
    typer.echo(f"reading {pairs} and {dev}")
    flags: dict[str, Any] = locals() | {
        "pairs_sha256": hash_pairs(pairs),
        "start": str(start) if start else None,
        "teachers": [str(path) for path in teacher or []],
    }
    options = TrainingOptions(**select(TrainingOptions, flags))
    wanted = Splitting(**select(Splitting, flags))
    source, target = choose_tokenizers(pairs, wanted, options)
    config = TransformerConfig(
        source_vocab_size=source.get_vocab_size(),
        target_vocab_size=target.get_vocab_size(),
        **select(TransformerConfig, flags),
    )
    open_run(run, config, options, (source, target))
    train(run, pairs, dev, options)
    typer.echo(f"{run} is trained")


def select(kind: type, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that are named like fields of the dataclass `kind`."""
    return {field.name: flags[field.name] for field in fields(kind) if field.name in flags}
