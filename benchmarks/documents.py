"""Decode whole files: python -m benchmarks.documents TEXTS --bundle … --checkpoint …

Texts go in and texts come out: over HTTP, by `heed decode`, and by CTranslate2 with the bundle's
tokenizers and its best size of batches. Next to them, the engine alone turns ids into ids.

Without a bundle, the model has OPUS-MT's sizes, random weights, and a token for each word. Its
targets never end themselves: each gets as many tokens as a text has words on average.
"""

import asyncio
import io
import json
import statistics
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import redirect_stderr
from multiprocessing import active_children
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import ctranslate2
import httpx2
import numpy as np
import typer
from tokenizers import Tokenizer

from benchmarks.kit.document import describe_machine, machine_line
from benchmarks.kit.memory import cpu_seconds_of, family
from benchmarks.kit.models import MARIAN, SENTENCES, mean_words, with_words, write_models
from benchmarks.kit.process import Stopwatch
from benchmarks.kit.serving import serving
from benchmarks.speed.agreement import Sources, find_languages, read_source_texts, read_sources
from benchmarks.speed.witness import Witness
from model.export.files.manifest import Precision
from service.bundle.languages import Slot
from service.bundle.manifest import Bundle, load_bundle
from service.command.files import decode_lines
from service.command.local import LocalEngine, LocalModel, local_service, local_settings
from service.engine.engine import Engine
from service.engine.scheduler import Job
from service.memory import collect_rarely
from service.search.options import SearchOptions
from service.wire import Entry

BEAM_SIZES = (1, 4)
PEER_BATCH = {1: 64, 4: 32}  # sources that CTranslate2 decodes together: its best of 16 to 256
PATIENCE = 600.0  # seconds for an answer
PEER, ALONE, COMMAND, HTTP = "CTranslate2", "Heed's engine alone", "heed decode", "Heed over HTTP"

Targets = Sequence[object]
Codes = Mapping[Slot, str]
Options = Mapping[str, Any]  # of a request
System = Callable[[int], Awaitable[Targets]]  # beam size -> a target for each text


class Turn(NamedTuple):
    """Seconds to decode all texts, and seconds of CPU of all processes."""

    seconds: float
    cpu_seconds: float


def options_of(given: Options, beam_size: int) -> dict[str, Any]:
    return {**given, "beam_size": beam_size, "num_hypotheses": 1, "early_stopping": True}


def over_http(port: int, texts: Sequence[str], given: Options) -> System:
    async def run(beam_size: int) -> Targets:
        body = {"source": texts, **options_of(given, beam_size)}
        url = f"http://127.0.0.1:{port}/v1/decode"
        answer = httpx2.post(url, json=body, timeout=PATIENCE).raise_for_status()
        return [each["hypotheses"][0]["text"] for each in json.loads(answer.content)["results"]]

    return run


def by_command(model: LocalModel, texts: Sequence[str], given: Options, work: Path) -> System:
    source, output = work / "lines.txt", work / "targets.txt"
    source.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")

    async def run(beam_size: int) -> Targets:
        with redirect_stderr(io.StringIO()):
            await decode_lines(model, source, output, options_of(given, beam_size))
        return output.read_text(encoding="utf-8").splitlines()

    return run


def by_engine(engine: Engine, sources: Sources, most: int) -> System:
    longest_first = sorted(map(np.array, sources.ids), key=len, reverse=True)

    async def run(beam_size: int) -> Targets:
        search = SearchOptions(max_new_tokens=most, beam_size=beam_size)
        jobs = [Job(Entry(ids, search, language=sources.language)) for ids in longest_first]
        engine.queue.put(jobs)
        return [job.result.result().hypotheses[0].token_ids for job in jobs]

    return run


def by_peer(
    translator: Any, bundle: Bundle, texts: Sequence[str], around: Sources, most: int
) -> System:
    """Return CTranslate2 behind the library that the bundle's tokenizers are for. `around` holds
    the ids of the texts, of which the first and last may be those of a template."""
    named = bundle.manifest.tokenizers
    source, target = (
        Tokenizer.from_file(str(bundle.path(name))) for name in (named.source, named.target)
    )
    first = source.encode(texts[0], add_special_tokens=False).ids
    start = next(i for i in range(len(around.ids[0])) if around.ids[0][i : i + len(first)] == first)
    before, after = around.ids[0][:start], around.ids[0][start + len(first) :]

    async def run(beam_size: int) -> Targets:
        read = source.encode_batch(texts, add_special_tokens=False)
        found = translator.translate_batch(
            [[str(i) for i in (*before, *each.ids, *after)] for each in read],
            beam_size=beam_size,
            max_batch_size=PEER_BATCH[beam_size],
            max_decoding_length=most,
            max_input_length=0,  # no limit
        )
        return target.decode_batch([[int(i) for i in each.hypotheses[0]] for each in found])

    return run


async def take_turn(system: System, beam_size: int) -> tuple[Turn, Targets]:
    before = served_seconds()
    with Stopwatch() as watch:
        targets = await system(beam_size)
    return Turn(watch.seconds, watch.cpu_seconds + served_seconds() - before), targets


def served_seconds() -> float:
    """CPU time of the servers that this process has started."""
    pids = [pid for child in active_children() if child.pid for pid in family(child.pid)]
    return sum(map(cpu_seconds_of, pids))


async def compare(systems: Mapping[str, System], beam_size: int, rounds: int) -> list[str]:
    """Let the systems take turns, after one that does not count, and return a line for each."""
    turns: dict[str, list[Turn]] = {name: [] for name in systems}
    targets: dict[str, Targets] = {}
    for counts in range(rounds + 1):
        for name, system in systems.items():
            turn, targets[name] = await take_turn(system, beam_size)
            turns[name] += [turn] if counts else []
    return [
        f"| {beam_size} | {name} | {summary(taken, turns)} | {describe(name, targets)} |"
        for name, taken in turns.items()
    ]


def summary(taken: Sequence[Turn], turns: Mapping[str, Sequence[Turn]]) -> str:
    """Return the medians, and how much less time it took than the peer, and than the engine."""
    seconds, cpu = zip(*taken, strict=True)
    medians = [statistics.median(each) for each in (seconds, cpu)]
    ratios = [
        statistics.median(other[i] / own[i] for own, other in zip(taken, turns[name], strict=True))
        for name in (PEER, ALONE)
        for i in range(len(Turn._fields))
    ]
    return " | ".join(f"{number:.2f}" for number in (*medians, *ratios))


def describe(name: str, targets: Mapping[str, Targets]) -> str:
    """Return how many targets are the peer's, and the words of all. The engine writes ids."""
    if name == ALONE:
        return " | "
    pairs = zip(targets[name], targets[PEER], strict=True)
    same = sum(one == other for one, other in pairs)
    return f"{same} | {sum(len(str(target).split()) for target in targets[name])}"


async def measure(
    work: Path, bundle: Bundle, texts: Sequence[str], codes: Codes, most: int, rounds: int
) -> list[str]:
    """Decode each text to at most `most` tokens, and return a line for each system and number of
    beams. CTranslate2's model is in the folder `ctranslate2` of `work`."""
    settings = local_settings(bundle.root).model_copy(update={"self_check": False})
    sources = read_sources(bundle, texts, find_languages(bundle.manifest, codes))
    given = {**codes, "max_new_tokens": most}
    with serving(bundle.root, max_sources=len(texts), max_rows=4 * len(texts)) as port:
        translator = ctranslate2.Translator(
            str(work / "ctranslate2"),
            compute_type="int8",
            inter_threads=settings.cores,
            intra_threads=1,
        )
        async with local_service(settings) as service:
            (model,) = service.registry.served.values()
            assert isinstance(model.engine, LocalEngine)
            assert model.engine.local
            collect_rarely()  # as `heed decode` and the service do
            systems = {
                PEER: by_peer(translator, bundle, texts, sources, most),
                ALONE: by_engine(model.engine.local, sources, most),
                COMMAND: by_command(LocalModel(service), texts, given, work),
                HTTP: over_http(port, texts, given),
            }
            return [line for size in BEAM_SIZES for line in await compare(systems, size, rounds)]


def main(
    texts: Annotated[
        Path, typer.Argument(help="File of texts: what precedes a tab on each line")
    ] = SENTENCES,
    bundle: Annotated[Path | None, typer.Option(help="Bundle with graphs at int8")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Hugging Face checkpoint of the bundle")
    ] = None,
    target_language: Annotated[str, typer.Option(help="Code, if the model reads it")] = "",
    rounds: Annotated[int, typer.Option(help="How many turns each system takes")] = 7,
) -> None:
    """Print seconds and ratios: above 1, Heed is faster than CTranslate2, or than its engine."""
    codes: Codes = {"target_language": target_language} if target_language else {}
    sources = read_source_texts(texts)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        if bundle and checkpoint:
            read = load_bundle(bundle)
            Witness(checkpoint, work, read.manifest)
            most = read.manifest.decoding.max_new_tokens
        elif bundle or checkpoint:
            raise typer.BadParameter("give both --bundle and --checkpoint, or neither")
        else:
            write_models(with_words(MARIAN.config, sources), work, Precision.int8)
            read, most = load_bundle(work / "heed"), mean_words(sources)
        lines = asyncio.run(measure(work, read, sources, codes, most, rounds))
    typer.echo(machine_line(describe_machine()))
    columns = (
        "beams | system | s | CPU s | x CTranslate2 | by CPU | x engine | by CPU | same | words"
    )
    typer.echo(f"| {columns} |\n|{'---|' * (columns.count('|') + 1)}")
    typer.echo("\n".join(lines))


if __name__ == "__main__":
    typer.run(main)
