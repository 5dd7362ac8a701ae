"""python -m model train | evaluate | export | convert | export-attend: the command line."""

import sys
from collections.abc import Mapping
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

try:
    import typer

    from model.checkpoint import load_model
    from model.data.pairs import read_pairs
    from model.data.tokenizers import Unit
    from model.evaluate import accuracy, by_source, predict
    from model.export.bundle import WeightType, write_bundle
    from model.export.manifest import Card, Precision
    from model.export.mechanisms import export_mechanisms
    from model.network.config import InputError, NormKind, ScoreFunction, TransformerConfig
    from model.network.transformer import Transformer
    from model.training.loop import train
    from model.training.run import TrainingOptions, choose_tokenizers, hash_pairs, open_run
except ModuleNotFoundError as error:
    sys.exit(f"heed: {error.name} is not installed: run pip install 'heed[model]'")

app = typer.Typer(
    help="Train, evaluate and export encoder-decoder Transformers.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def positive(help_text: str) -> Any:
    return typer.Option(help=help_text, min=1)


def share(help_text: str, most: float = 1) -> Any:
    return typer.Option(help=help_text, min=0, max=most)


def existing_file(help_text: str) -> Any:
    return typer.Option(help=help_text, exists=True, dir_okay=False)


def existing_folder(help_text: str) -> Any:
    return typer.Option(help=help_text, exists=True, file_okay=False)


Pairs = Annotated[
    Path,
    typer.Argument(
        help="UTF-8 file of lines source<TAB>target; a source may be repeated with another target",
        exists=True,
        dir_okay=False,
    ),
]

# The flags of `train`. Those of the network and of the training are named like the fields of
# TransformerConfig and TrainingOptions that they set.
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
JoinedFlag = Annotated[
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
MadeUpFlag = Annotated[
    float,
    typer.Option(
        help="synthetic sources to add per source of the pairs, labelled by the teachers", min=0
    ),
]


@app.command(name="train")
def train_command(
    pairs: Pairs,
    dev: DevFlag,
    run: RunFlag,
    source_unit: SourceUnitFlag = Unit.characters,
    target_unit: TargetUnitFlag = Unit.words,
    d_model: DModelFlag = 192,
    d_ff: DFfFlag = 768,
    num_heads: NumHeadsFlag = 4,
    d_qk: DQkFlag = 0,
    d_v: DVFlag = 0,
    score_function: ScoreFlag = ScoreFunction.scaled_dot_product,
    norm: NormFlag = NormKind.layer_norm,
    num_encoder_layers: EncoderLayersFlag = 4,
    num_decoder_layers: DecoderLayersFlag = 3,
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
    joined: JoinedFlag = 0.02,
    average: AverageFlag = 5,
    seed: SeedFlag = 0,
    start: StartFlag = None,
    teacher: TeacherFlag = None,
    made_up: MadeUpFlag = 0.0,
) -> None:
    """Train a model on pairs of texts, or resume a training that was interrupted.

    The defaults train the first teacher of the pronunciation model that Heed ships.
    """
    flags: dict[str, Any] = locals() | {
        "pairs_sha256": hash_pairs(pairs),
        "start": str(start) if start else None,
        "teachers": [str(path) for path in teacher or []],
    }
    options = TrainingOptions(**select(TrainingOptions, flags))
    source, target = choose_tokenizers(pairs, source_unit, target_unit, options)
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


@app.command()
def evaluate(
    model: Annotated[
        Path, typer.Argument(help="a training run or a bundle", exists=True, file_okay=False)
    ],
    pairs: Pairs,
    beam_size: Annotated[int, positive("beams of the search; 1 is greedy search")] = 1,
    predictions: Annotated[
        Path | None, typer.Option(help="file to write lines source<TAB>prediction to")
    ] = None,
) -> None:
    """Decode every source with PyTorch and print word and phoneme error rates in percent.

    They are given without and with the digits that mark stress in ARPAbet.
    """
    references = read_pairs(pairs)
    sources = list(by_source(references))
    predicted = dict(zip(sources, predict(load_model(model), sources, beam_size), strict=True))
    if predictions is not None:
        lines = [f"{source}\t{text}\n" for source, text in predicted.items()]
        predictions.write_text("".join(lines), encoding="utf-8")
    typer.echo(accuracy(predicted, references))


@app.command()
def export(
    model: Annotated[Path, typer.Argument(help="a training run", exists=True, file_okay=False)],
    bundle: Annotated[Path, typer.Argument(help="the folder to write; a bundle is replaced")],
    task: Annotated[str, typer.Option(help="one line on what the model does")],
    licence: Annotated[str, typer.Option(help="SPDX identifier of the weights' licence")],
    attribution: Annotated[str, typer.Option(help="whose data or weights these are")],
    notice: Annotated[Path, existing_file("licence text, stored as NOTICE")],
    model_card: Annotated[Path | None, existing_file("Markdown, stored as MODEL_CARD.md")] = None,
    name: Annotated[
        str, typer.Option(help="the model's name in the API; the bundle's folder name if empty")
    ] = "",
    weights: Annotated[WeightType, typer.Option(help="number type of the weights on disk")] = (
        WeightType.fp32
    ),
    precision: Annotated[
        Precision,
        typer.Option(help="arithmetic of the graphs; int8 has 8-bit products, for CPUs"),
    ] = Precision.fp32,
) -> None:
    """Write a bundle, the folder that the service serves a model from."""
    if precision is not Precision.fp32 and find_spec("onnxruntime") is None:
        raise InputError(
            f"--precision {precision} measures its error with onnxruntime, which is not installed:"
            " run pip install 'heed[cpu]'"
        )
    card = Card(
        name=name or bundle.name,
        task=task,
        licence=licence,
        attribution=attribution,
        notice=notice.read_text(encoding="utf-8"),
        model_card=model_card.read_text(encoding="utf-8") if model_card else "",
    )
    trained = load_model(model)
    write_bundle(trained, card, weights, bundle, precision)
    size = sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file())
    typer.echo(f"{bundle}: {size / 1e6:.1f} MB")
    if precision is not Precision.fp32:
        report_int8(bundle, trained.transformer)


def report_int8(bundle: Path, transformer: Transformer) -> None:
    """Print how much the answers of the int8 graphs differ from torch's."""
    from model.export.compare import compare  # it needs onnxruntime, the extra `cpu`

    found = compare(bundle / "int8", transformer)
    typer.echo(
        f"int8 compared with torch on random sources: log-probs of likely tokens differ by"
        f" {found.mean:.3f} on average and {found.largest:.3f} at most;"
        f" {found.same_best:.1%} of the best tokens are the same"
    )


@app.command(name="convert")
def convert_command(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            help="folder of a Hugging Face checkpoint, or of a model of your own",
            exists=True,
            file_okay=False,
        ),
    ],
    bundle: Annotated[Path, typer.Argument(help="the folder to write; a bundle is replaced")],
    name: Annotated[
        str, typer.Option(help="the model's name in the API; the bundle's folder name if empty")
    ] = "",
    licence: Annotated[
        str, typer.Option(help="SPDX identifier; as the checkpoint's README.md says if empty")
    ] = "",
    precision: Annotated[
        Precision,
        typer.Option(help="arithmetic of the graphs; int8 has 8-bit products, for CPUs"),
    ] = Precision.both,
    weights: Annotated[
        WeightType | None,
        typer.Option(help="number type of the weights on disk; the checkpoint's own if omitted"),
    ] = None,
    max_length: Annotated[
        int, positive("longest text in tokens, for networks that have no limit, such as T5")
    ] = 512,
) -> None:
    """Convert a checkpoint on disk to a bundle, and prove that its numbers are the original's.

    Exits with 2 if the checkpoint cannot be converted, with 3 if a proof fails. Either way no
    bundle is written, and an existing one stays.
    """
    try:
        from model.importers.convert import FailedProof, Options, convert
    except ModuleNotFoundError as error:
        raise InputError(
            f"{error.name} is not installed: run pip install 'heed[model,convert]'"
        ) from error
    options = Options(
        name=name or bundle.name,
        licence=licence,
        max_length=max_length,
        precision=precision,
        weights=weights,
    )
    try:
        convert(checkpoint, bundle, options, typer.echo)
    except InputError as error:
        typer.echo(f"heed: {error}", err=True)
        raise typer.Exit(2) from error
    except FailedProof as error:
        typer.echo(f"{error}\nheed: a proof fails, so {bundle} was not written", err=True)
        if error.only_int8:
            typer.echo("heed: int8 does not suit this model: give --precision fp32", err=True)
        raise typer.Exit(3) from error


@app.command()
def export_attend(
    folder: Annotated[Path, typer.Argument(help="the folder to write the graphs to")],
) -> None:
    """Write the graphs of /v1/attend: attention mechanisms without a model."""
    export_mechanisms(folder)


if __name__ == "__main__":
    try:
        app()
    except InputError as error:
        sys.exit(f"heed: {error}")
