"""Count the texts that int8 decodes to the tokens of fp32: python -m benchmarks.speed.agreement

Heed's count stands next to CTranslate2's, which converts the same checkpoint and reads the same
source ids. A control counts the texts that both decode alike at fp32.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer

from benchmarks.kit.document import describe_machine, machine_line
from benchmarks.kit.results import Agreement, Alike
from benchmarks.speed.agreement_report import agreement_columns
from benchmarks.speed.report import read_results, write_results
from benchmarks.speed.witness import Ids, Witness
from service.bundle.languages import Slot, fill, slots_of
from service.bundle.manifest import Bundle, Manifest, load_bundle
from service.engine.engine import Engine
from service.engine.scheduler import Job
from service.errors import HeedError
from service.search.options import SearchOptions
from service.settings.settings import DEFAULT_BUNDLE, Precision, Provider, Settings
from service.text.opening import open_tokenizers
from service.wire import Entry

BEAM_SIZES = (1, 4)
CHUNK = 256  # sources that wait for the engine at a time

Languages = Mapping[Slot, Sequence[int]]  # ids


class Sources(NamedTuple):
    """Ids of the sources as the encoder reads them, and of the target language."""

    ids: Ids
    language: tuple[int, ...]


def measure(
    bundle_folder: Path, texts: Sequence[str], codes: Mapping[Slot, str], checkpoint: Path | None
) -> Agreement:
    """Decode the texts with each precision and beam size. Without a checkpoint, only Heed does."""
    bundle = load_bundle(bundle_folder)
    manifest = bundle.manifest
    sources = read_sources(bundle, texts, find_languages(manifest, codes))
    found: Agreement = {
        "machine": describe_machine(),
        "family": manifest.origin.get("kind", manifest.name),
        "texts": len(texts),
        "searches": [],
    }
    with tempfile.TemporaryDirectory() as work:
        witness = Witness(checkpoint, Path(work), manifest) if checkpoint else None
        for beam_size in BEAM_SIZES:
            found["searches"].append(count_alike(bundle, sources, witness, beam_size))
    return found


def count_alike(bundle: Bundle, sources: Sources, witness: Witness | None, beam_size: int) -> Alike:
    options = options_of(bundle.manifest, beam_size)
    int8, fp32 = (
        decode_best(bundle, sources, precision, options)
        for precision in (Precision.int8, Precision.fp32)
    )
    found: Alike = {"beam_size": beam_size, "heed": count_equal(int8, fp32)}
    if witness:
        their_int8, float32 = (
            witness.decode(sources.ids, sources.language, compute_type, options)
            for compute_type in ("int8", "float32")
        )
        found["ctranslate2"] = count_equal(their_int8, float32)
        found["control"] = count_equal(fp32, float32)
    return found


def options_of(manifest: Manifest, beam_size: int) -> SearchOptions:
    """Return the search that both systems have: the model's limit and banned tokens, nothing else
    of its own options."""
    own = manifest.decoding
    return SearchOptions(
        max_new_tokens=own.max_new_tokens,
        min_new_tokens=1,  # as CTranslate2 has it
        beam_size=beam_size,
        suppress_tokens=tuple(own.suppressed.ids),
        renormalize=own.renormalize,
    )


def decode_best(
    bundle: Bundle, sources: Sources, precision: Precision, options: SearchOptions
) -> Ids:
    """Return the ids of the best hypothesis of each source."""
    engine = Engine(bundle, Settings(provider=Provider.cpu, precision=precision))
    engine.start()
    found: Ids = []
    for first in range(0, len(sources.ids), CHUNK):
        jobs = [
            Job(Entry(np.array(ids), options, language=sources.language))
            for ids in sources.ids[first : first + CHUNK]
        ]
        engine.queue.put(jobs)
        found += [job.result.result().hypotheses[0].token_ids for job in jobs]
    engine.close()
    return found


def count_equal(one: Ids, other: Ids) -> int:
    return sum(a == b for a, b in zip(one, other, strict=True))


def find_languages(manifest: Manifest, codes: Mapping[Slot, str]) -> Languages:
    """Return the ids of the languages that the model reads. Raise BadParameter if a code is
    missing, unknown or without effect."""
    templates = (manifest.source_prefix, manifest.source_suffix, manifest.decoder_start)
    slots: set[Slot] = {slot for template in templates for slot in slots_of(template)}
    if unread := codes.keys() - slots:
        raise typer.BadParameter(f"the model reads no {' or '.join(sorted(unread))}: leave it out")
    found: dict[Slot, Sequence[int]] = {}
    for slot in slots:
        known = manifest.languages.of(slot)
        if codes.get(slot) not in known:
            option = slot.replace("_", "-")
            raise typer.BadParameter(f"give --{option}, one of {', '.join(known)}")
        found[slot] = known[codes[slot]]
    return found


def read_sources(bundle: Bundle, texts: Sequence[str], languages: Languages) -> Sources:
    """Raise BadParameter naming the line of a text that the model cannot read."""
    manifest = bundle.manifest
    tokenizer = open_tokenizers(bundle)[0].between(
        fill(manifest.source_prefix, languages), fill(manifest.source_suffix, languages)
    )
    try:
        ids = [tokenizer.encode(text, f"text {i}").ids for i, text in enumerate(texts, 1)]
    except HeedError as error:
        raise typer.BadParameter(error.detail) from error
    return Sources(ids, tuple(languages.get("target_language", ())))


def read_source_texts(path: Path) -> list[str]:
    """Return the sources of a file, up to the tab of each line. Empty lines are skipped. Raise
    BadParameter if there is none."""
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    texts = [line.partition("\t")[0] for line in lines]
    if found := [text for text in texts if text.strip()]:
        return found
    raise typer.BadParameter(f"{path} holds no text: give a file with a text on each line")


def add_agreement(found: Agreement, docs: Path) -> None:
    """Add a line to docs/performance.md, in the place of that of the same family and machine."""
    results = read_results(docs)
    lines = {
        (each["family"], machine_line(each["machine"])): each
        for each in results.get("agreement", [])
    }
    lines[found["family"], machine_line(found["machine"])] = found
    write_results({**results, "agreement": [*lines.values()]}, docs)


def main(
    texts: Annotated[Path, typer.Argument(help="File of texts: what precedes a tab on each line")],
    bundle: Annotated[Path, typer.Option(help="Bundle at both precisions")] = DEFAULT_BUNDLE,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Hugging Face checkpoint of the bundle; without it, no peer")
    ] = None,
    source_language: Annotated[str, typer.Option(help="Code, if the model reads it")] = "",
    target_language: Annotated[str, typer.Option(help="Code, if the model reads it")] = "",
    docs: Annotated[
        Path | None, typer.Option(help="Folder of performance.md and .json, to add the line to")
    ] = None,
) -> None:
    """Print how many texts are decoded alike at int8 and fp32, greedily and with four beams."""
    codes: dict[Slot, str] = {}
    if source_language:
        codes["source_language"] = source_language
    if target_language:
        codes["target_language"] = target_language
    found = measure(bundle, read_source_texts(texts), codes, checkpoint)
    typer.echo(" | ".join(agreement_columns(found)))
    if docs:
        add_agreement(found, docs)


if __name__ == "__main__":
    typer.run(main)
