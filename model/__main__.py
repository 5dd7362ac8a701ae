"""python -m model train | evaluate | export"""

import hashlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from model.checkpoint import create_run, find_weights, load_config, load_model, load_tokenizers
from model.data.pairs import read_pairs
from model.data.tokenizers import Unit, build_tokenizer
from model.evaluate import accuracy, by_source, predict
from model.export.bundle import Card, Precision, WeightType, write_bundle
from model.export.mechanisms import export_mechanisms
from model.network.config import InputError, NormKind, ScoreFunction, TransformerConfig
from model.training.loop import (
    OPTIONS,
    TrainingOptions,
    check_others,
    differences,
    has_learned,
    train,
)

app = typer.Typer(
    help="Train, evaluate and export encoder-decoder Transformers.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


Pairs = Annotated[Path, typer.Argument(help="source<TAB>target lines", exists=True, dir_okay=False)]
Positive = typer.Option(min=1)


@app.command(name="train")
def train_command(
    pairs: Pairs,
    dev: Annotated[
        Path, typer.Option(help="as the pairs, to measure the loss on", exists=True, dir_okay=False)
    ],
    run: Annotated[
        Path, typer.Option(help="where the run lives; a stopped one is resumed", file_okay=False)
    ],
    source_unit: Annotated[
        Unit, typer.Option(help="how a source is split; with --start or --teacher, as theirs")
    ] = Unit.characters,
    target_unit: Annotated[
        Unit, typer.Option(help="how a target is split; with --start or --teacher, as theirs")
    ] = Unit.words,
    d_model: Annotated[int, Positive] = 192,
    d_ff: Annotated[int, Positive] = 768,
    num_heads: Annotated[int, Positive] = 4,
    d_qk: Annotated[int, typer.Option(min=0, help="0: d_model / num_heads")] = 0,
    d_v: Annotated[int, typer.Option(min=0, help="0: d_model / num_heads")] = 0,
    score_function: ScoreFunction = ScoreFunction.scaled_dot_product,
    norm: NormKind = NormKind.layer_norm,
    num_encoder_layers: Annotated[int, Positive] = 4,
    num_decoder_layers: Annotated[int, Positive] = 3,
    norm_first: bool = True,
    rotary: Annotated[bool, typer.Option(help="queries and keys turn by position")] = True,
    dropout: float = 0.15,
    max_source_length: Annotated[int, typer.Option(min=1, help="tokens")] = 64,
    max_target_length: Annotated[int, typer.Option(min=2, help="tokens and bos")] = 64,
    epochs: Annotated[int, Positive] = 50,
    batch_size: Annotated[int, Positive] = 256,
    learning_rate: Annotated[
        float, typer.Option(help="at the top of the schedule", min=0)
    ] = 1.2e-3,
    warmup: Annotated[float, typer.Option(help="share of all steps", min=0, max=0.9)] = 0.05,
    weight_decay: Annotated[float, typer.Option(min=0)] = 0.02,
    label_smoothing: Annotated[float, typer.Option(min=0, max=1)] = 0.1,
    joined: Annotated[
        float, typer.Option(help="share of pairs joined in threes: long sources", min=0, max=1)
    ] = 0.02,
    average: Annotated[int, typer.Option(min=1, help="last epochs whose weights are averaged")] = 5,
    seed: int = 0,
    start: Annotated[
        Path | None,
        typer.Option(help="a run or bundle whose weights come first", exists=True, file_okay=False),
    ] = None,
    teacher: Annotated[
        list[Path] | None,
        typer.Option(
            help="a run or bundle to learn from, or, repeated, several",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    made_up: Annotated[
        float, typer.Option(help="sources that only teachers answer, for each of the pairs'", min=0)
    ] = 0.0,
) -> None:
    """Train on pairs of texts. The defaults train the first teacher of the pronunciation model that
    Heed ships; a few hundred pairs want a --batch-size of 16."""
    if others := [*filter(None, [start]), *(teacher or [])]:
        for other in others:
            find_weights(other)
        source, target = load_tokenizers(others[0])
    else:
        text = read_pairs(pairs)
        source = build_tokenizer((s for s, _ in text), source_unit)
        target = build_tokenizer((t for _, t in text), target_unit)
    config = TransformerConfig(
        source_vocab_size=source.get_vocab_size(),
        target_vocab_size=target.get_vocab_size(),
        d_model=d_model,
        d_ff=d_ff,
        num_heads=num_heads,
        d_qk=d_qk,
        d_v=d_v,
        score_function=score_function,
        norm=norm,
        num_encoder_layers=num_encoder_layers,
        num_decoder_layers=num_decoder_layers,
        norm_first=norm_first,
        rotary=rotary,
        dropout=dropout,
        max_source_length=max_source_length,
        max_target_length=max_target_length,
    )
    options = TrainingOptions(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        warmup=warmup,
        weight_decay=weight_decay,
        label_smoothing=label_smoothing,
        joined=joined,
        average=average,
        seed=seed,
        pairs_sha256=hashlib.sha256(pairs.read_bytes()).hexdigest(),
        start=str(start) if start else None,
        teachers=[str(path) for path in teacher or []],
        made_up=made_up,
    )
    check_others(config, options)
    if run.exists() and any(run.iterdir()) and not (run / OPTIONS).exists():
        raise InputError(f"{run} is not empty and no run: name another folder")
    if has_learned(run):
        started = asdict(load_config(run)) | json.loads((run / OPTIONS).read_text())
        if different := differences(started, asdict(config) | asdict(options)):
            raise InputError(f"{run} was started with {different}: name another run")
    else:
        run.mkdir(parents=True, exist_ok=True)
        (run / OPTIONS).write_text(json.dumps(asdict(options), indent=2) + "\n")
        create_run(run, config, source, target)
    train(run, pairs, dev, options)
    typer.echo(f"{run} is trained")


@app.command()
def evaluate(
    model: Annotated[Path, typer.Argument(help="a run or a bundle", exists=True, file_okay=False)],
    pairs: Pairs,
    beam_size: Annotated[int, Positive] = 1,
    predictions: Annotated[Path | None, typer.Option(help="write source<TAB>prediction")] = None,
) -> None:
    """Decode every source with the torch model and print word and phoneme error rates: without the
    digits at the end of words in capitals, which ARPAbet has for stress, and with them."""
    references = read_pairs(pairs)
    sources = list(by_source(references))
    predicted = dict(zip(sources, predict(load_model(model), sources, beam_size), strict=True))
    if predictions is not None:
        lines = [f"{source}\t{text}\n" for source, text in predicted.items()]
        predictions.write_text("".join(lines), encoding="utf-8")
    typer.echo(accuracy(predicted, references))


@app.command()
def export(
    model: Annotated[Path, typer.Argument(help="a run", exists=True, file_okay=False)],
    bundle: Annotated[Path, typer.Argument(help="the folder to write, or to replace")],
    task: Annotated[str, typer.Option(help="what the model does, in a line")],
    licence: Annotated[str, typer.Option(help="SPDX identifier of the weights' licence")],
    attribution: Annotated[str, typer.Option(help="whose data or weights these are")],
    notice: Annotated[
        Path, typer.Option(help="licence text to carry along", exists=True, dir_okay=False)
    ],
    model_card: Annotated[
        Path | None,
        typer.Option(help="Markdown to carry along as MODEL_CARD.md", exists=True, dir_okay=False),
    ] = None,
    name: Annotated[str, typer.Option(help="as the API calls it; the folder's, if empty")] = "",
    weights: Annotated[WeightType, typer.Option(help="how weights lie on disk")] = WeightType.fp32,
    precision: Annotated[
        Precision, typer.Option(help="int8: graphs of 8-bit products beside those of fp32")
    ] = Precision.fp32,
) -> None:
    """Write a bundle that the service can serve."""
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
    if precision is Precision.int8:
        from model.export.compare import compare  # it needs the runtime of the extra `cpu`

        found = compare(bundle, trained.transformer)
        typer.echo(
            f"int8 beside fp32, on random sources: log-probs of likely tokens differ by"
            f" {found.mean:.3f} on average, {found.largest:.3f} at most;"
            f" {found.same_best:.1%} of the best tokens are the same"
        )


@app.command()
def export_attend(
    folder: Annotated[Path, typer.Argument(help="where the graphs of /v1/attend go")],
) -> None:
    """Write the graphs of attention without a model."""
    export_mechanisms(folder)


if __name__ == "__main__":
    try:
        app()
    except InputError as error:
        sys.exit(f"heed: {error}")
