"""python -m model train | evaluate | export | convert | align | export-attend: the commands."""

import gc
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

# Waiting threads sleep: on a busy machine, spinning threads take time from the threads that they
# wait for. OpenMP reads this variable when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

try:
    import typer

    from model.align_command import align_command
    from model.checkpoint import examples_of, load_model
    from model.data.pairs import read_pairs
    from model.data.text_file import read_text
    from model.evaluate import by_source, predict, score
    from model.export.bundle import Progress, WeightType, write_bundle
    from model.export.checks.answers import answer
    from model.export.checks.samples import samples
    from model.export.files.manifest import Card, Precision
    from model.export.files.weights import (
        fp32_products,
        linear_layers,
        release_weights,
        round_weights,
    )
    from model.export.graphs.mechanisms import export_mechanisms
    from model.flags import Examples, PairsFile, existing_file, output_file, positive, share
    from model.network.config import InputError
    from model.network.transformer import Transformer
    from model.train_command import train_command
except ModuleNotFoundError as error:
    extra = "convert" if sys.argv[1:2] == ["convert"] else "model"
    advice = f"run pipx install --force '.[{extra}]', or pip install 'heed-server[{extra}]'"
    print(f"heed: {error.name} is not installed: {advice}", file=sys.stderr)
    sys.exit(2)

if TYPE_CHECKING:
    from model.importers.convert import FailedProof

app = typer.Typer(
    help="Train, evaluate and export encoder-decoder Transformers.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


PRECISION_HELP = (
    "arithmetic of the graphs; int8 has weights of 8 bits, for CPUs; fp16 is for GPUs; both: fp32"
    " and int8; auto: fp32, and int8 unless its proof fails; all: fp32, int8 and fp16"
)

app.command(name="train")(train_command)
app.command(name="align")(align_command)


@app.command()
def evaluate(
    model: Annotated[
        Path, typer.Argument(help="a training run or a bundle", exists=True, file_okay=False)
    ],
    pairs: PairsFile,
    beam_size: Annotated[int, positive("beams of the search; 1 is greedy search")] = 1,
    predictions: Annotated[
        Path | None, output_file("file to write lines source<TAB>prediction to")
    ] = None,
) -> None:
    """Decode every source with PyTorch; print the share of exact targets, and the edit distance.

    The distance is in words or characters. If all targets are phonemes of ARPAbet, print word and
    phoneme error rates instead, without and with the digits that mark stress.
    """
    references = read_pairs(pairs)
    sources = list(by_source(references))
    trained = load_model(model)
    predicted = dict(zip(sources, predict(trained, sources, beam_size), strict=True))
    if predictions is not None:
        lines = [f"{source}\t{text}\n" for source, text in predicted.items()]
        predictions.write_text("".join(lines), encoding="utf-8")
    typer.echo(score(predicted, references, trained.target_tokenizer))


@app.command()
def export(
    model: Annotated[Path, typer.Argument(help="a training run", exists=True, file_okay=False)],
    bundle: Annotated[Path, typer.Argument(help="the folder to write; a bundle is replaced")],
    task: Annotated[str, typer.Option(help="one line on what the model does")] = "",
    licence: Annotated[str, typer.Option(help="SPDX identifier of the weights' licence")] = "",
    attribution: Annotated[str, typer.Option(help="whose data or weights these are")] = "",
    notice: Annotated[Path | None, existing_file("licence text, stored as NOTICE")] = None,
    model_card: Annotated[Path | None, existing_file("Markdown, stored as MODEL_CARD.md")] = None,
    example: Examples = None,
    name: Annotated[
        str, typer.Option(help="the model's name in the API; the bundle's folder name if empty")
    ] = "",
    weights: Annotated[WeightType, typer.Option(help="number type of the weights on disk")] = (
        WeightType.fp32
    ),
    precision: Annotated[
        Precision,
        typer.Option(help=PRECISION_HELP),
    ] = Precision.fp32,
) -> None:
    """Write a bundle, the folder that the service serves a model from."""
    check_precision(precision)
    card = Card(
        name=name or bundle.name,
        task=task,
        licence=licence,
        attribution=attribution,
        examples=example or examples_of(model),
        notice=read_text(notice) if notice else "",
        model_card=read_text(model_card) if model_card else "",
    )
    trained, progress = load_model(model), timed_progress()
    round_weights(trained.transformer, weights)
    write_bundle(trained, card, weights, bundle, precision, progress=progress)
    size = sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file())
    typer.echo(f"{bundle}: {size / 1e6:.1f} MB")
    if precision is not Precision.fp32:
        report_errors(bundle, trained.transformer, progress)


def check_precision(precision: Precision) -> None:
    """Raise InputError for a precision that `export` cannot choose or measure."""
    if precision is Precision.auto:
        raise InputError(
            "--precision auto is an option of convert only, which reads texts: give both or fp32"
        )
    if precision is not Precision.fp32 and find_spec("onnxruntime") is None:
        raise InputError(
            f"--precision {precision} measures its error with onnxruntime, which is not installed:"
            " run pip install heed-server"
        )


def timed_progress() -> Progress:
    """Return a function that prints each stage, and the seconds since the start, to stderr."""
    began = monotonic()
    return lambda what: typer.echo(f"{monotonic() - began:5.0f} s  {what}", err=True)


def report_errors(bundle: Path, transformer: Transformer, progress: Progress) -> None:
    """Print which products of int8 stay fp32, and how much the answers of the int8 and fp16 graphs
    differ from torch's on sources that calibration did not see. The transformer loses its weights:
    the graphs need memory.
    """
    # they need onnxruntime
    from model.export.checks.compare import compare
    from model.export.checks.self_check import check_like_service

    rounded = [each for each in ("int8", "fp16") if (bundle / each).is_dir()]
    if "int8" in rounded:
        kept = fp32_products(transformer, bundle / "int8")
        total = len(linear_layers(transformer))
        names = f": {', '.join(kept)}" if kept else ""
        typer.echo(f"int8: {len(kept)} of {total} products stay fp32{names}")
    progress("computing torch's answers for the graphs")
    answers = answer(transformer, samples(transformer, seed=1))
    release_weights(transformer)
    for precision in rounded:
        progress(f"comparing the {precision} graphs with torch")
        found = compare(bundle / precision, answers)
        typer.echo(
            f"{precision} compared with torch on random sources: log-probs of probable tokens"
            f" differ by {found.mean:.3f} on average and {found.largest:.3f} at most;"
            f" {found.same_best:.1%} of the most probable tokens are the same"
        )
        if refusal := check_like_service(bundle, precision):
            typer.echo(
                f"heed: the service may refuse to start {precision}: {refusal}; export with"
                " --precision fp32",
                err=True,
            )


@app.command(name="convert")
def convert_command(
    checkpoint: Annotated[
        str,
        typer.Argument(
            help="folder of a Hugging Face checkpoint, of a model of your own, or of a model of"
            " Marian, or a zip of the last; or the id of a model of the Hugging Face hub, such as"
            " Helsinki-NLP/opus-mt-en-fr, to which @ and a revision may be added"
        ),
    ],
    bundle: Annotated[Path, typer.Argument(help="the folder to write; a bundle is replaced")],
    name: Annotated[
        str, typer.Option(help="the model's name in the API; the bundle's folder name if empty")
    ] = "",
    licence: Annotated[
        str,
        typer.Option(
            help="SPDX identifier; as the checkpoint's README.md says if empty. A model of your"
            " own, and a folder without README.md, need none"
        ),
    ] = "",
    example: Examples = None,
    precision: Annotated[
        Precision,
        typer.Option(help=PRECISION_HELP),
    ] = Precision.auto,
    weights: Annotated[
        WeightType | None,
        typer.Option(help="number type of the weights on disk; the checkpoint's own if omitted"),
    ] = None,
    max_length: Annotated[
        int | None,
        positive(
            "longest text in tokens, for T5 and its kin, and for files of Marian, which have no"
            " limit (512 if omitted);"
            " refused for networks with a table of positions"
        ),
    ] = None,
    texts: Annotated[
        Path | None,
        existing_file(
            "texts for the proofs and for int8, one a line up to a tab, such as the model is made"
            " for; built-in sentences that its tokenizer reads if omitted"
        ),
    ] = None,
    targets: Annotated[
        str,
        typer.Option(
            help="target languages, separated by commas, that need not all tokens: fra_Latn keeps"
            " those of its script, fra_Latn=FILE those of texts in it, one a line"
            " (docs/checkpoints.md)"
        ),
    ] = "",
    expected: Annotated[
        Path | None,
        existing_file("right answers of greedy search, lines source<TAB>target, to compare with"),
    ] = None,
    expected_share: Annotated[
        float | None,
        share("least share of the --expected answers that must come out, 0 to 1; 1 if omitted"),
    ] = None,
) -> None:
    """Convert a checkpoint to a bundle, and prove that its numbers are the original's.

    Exits with 2 if the checkpoint cannot be converted, with 3 if a proof fails. Either way no
    bundle is written, and an existing one stays.
    """
    try:
        from model.importers.convert import FailedProof, Options, convert
        from model.importers.files.archive import unpacked
        from model.importers.proofs.expected import answers_of
        from model.importers.proofs.proof import LEFT_OUT, as_text
        from model.importers.target_lists import read_targets
    except ModuleNotFoundError as error:
        raise InputError(
            f"{error.name} is not installed: run pip install 'heed-server[convert]'"
        ) from error
    try:
        options = Options(
            name=name or bundle.name,
            licence=licence,
            examples=example or [],
            max_length=max_length,
            precision=precision,
            weights=weights,
            texts=texts,
            expected=answers_of(expected, expected_share),
            targets=read_targets(targets),
        )
        progress = timed_progress()
        with unpacked(find_checkpoint(checkpoint, licence, progress)) as folder:
            proofs = convert(folder, bundle, options, progress)
    except InputError as error:
        typer.echo(f"heed: {error}", err=True)
        raise typer.Exit(2) from error
    except FailedProof as error:
        report_failed(error, bundle)
        raise typer.Exit(3) from error
    typer.echo(as_text(proofs))
    if any(proof.otherwise == LEFT_OUT for proof in proofs):
        sentence = f"heed: int8 is left out, since its proof does not hold: {bundle} has fp32 alone"
        typer.echo(sentence, err=True)


def report_failed(error: "FailedProof", bundle: Path) -> None:
    """Print the proofs, which of them fail, and what to do if rounding alone is the cause."""
    failed = " and ".join(error.failed)
    typer.echo(f"{error}\nheed: a proof fails, so {bundle} was not written: {failed}", err=True)
    if error.only_rounded:
        names = " and ".join(error.only_rounded)
        typer.echo(f"heed: use --precision fp32 for this model, instead of {names}", err=True)


def find_checkpoint(name: str, licence: str, progress: Progress) -> Path:
    """Return a folder, or that of a model of the hub, which is downloaded."""
    from model.importers.hub import HUB_ID, download

    if Path(name).exists() or not HUB_ID.fullmatch(name):
        return Path(name)
    progress(f"downloading {name}")
    return download(name, licence)


@app.command()
def export_attend(
    folder: Annotated[Path, typer.Argument(help="the folder to write the graphs to")],
) -> None:
    """Write the graphs of /v1/attend: attention mechanisms without a model."""
    export_mechanisms(folder)


def flags_of(command: str) -> dict[str, list[str]]:
    """Return the flags of a command, each with the values between which it chooses."""
    found = typer.main.get_group(app).commands[command]
    context = typer.Context(found)
    return {
        flag: [item.value for item in each.shell_complete(context, "") if item.type == "plain"]
        for each in found.params
        for flag in each.opts
        if flag.startswith("-")
    }


def main(program: str | None = None) -> None:
    gc.freeze()  # looking at all that torch has imported, again and again, slows an export down
    try:
        app(prog_name=program)
    except InputError as error:
        sys.exit(f"heed: {error}")
    except OSError as error:  # of the user's disk
        path = f"{error.filename}: " if error.filename else ""
        sys.exit(
            f"heed: {path}{error.strerror or error}: name a path that can be read and written, and"
            " make room if the disk is full"
        )


if __name__ == "__main__":
    main()
