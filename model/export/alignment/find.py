"""Find the alignment of a bundle, and write it into bundle.json and the model card."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from tokenizers import Tokenizer

from model.checkpoint import parse_json, replace_whole
from model.data.tokenizers import unknown_id_of
from model.export.alignment.choose import Candidate, Choice, Ranked, choose
from model.export.alignment.graphs import Graphs
from model.export.alignment.occlusion import occlude
from model.export.alignment.sources import Reader, spread
from model.export.files.manifest import FOLDERS, FORMAT_VERSION, hash_file
from model.export.files.work_folder import changed
from model.network.config import InputError
from model.usage import GUIDED

NEEDED = ("encoder", "step", "attention", "score")
READ = {  # fields of bundle.json
    *("config", "decoder_start", "decoding", "eos_id", "files", "languages", "limits", "pad_id"),
    *("precisions", "source_prefix", "source_suffix", "tokenizers", "unknown_id"),
}
CARD = "MODEL_CARD.md"
TITLE = "## Alignment\n"
WIDTH = 112  # characters of a line in the card
SECTION = re.compile(rf"\n*^{TITLE}.*?(?=^## |\Z)", re.M | re.S)


def align(
    bundle: Path,
    sources: Sequence[list[int]] = (),
    texts: Sequence[str] = (),
    progress: Callable[[str], None] = lambda _: None,
    guided: tuple[int, int] | None = None,
    surely: bool = True,
) -> str:
    """Find which attention aligns, write it into a bundle, and return a sentence that says it.

    It is looked for on `sources`, ids as the encoder reads them; without any, on `texts` or else on
    sources of its own. If training guided a layer and head to alignments, now or as the bundle
    says, it is that one, and occlusion measures it; if it is not known `surely`, only if the best
    candidate agrees hardly more often. Raise InputError if the bundle is damaged, or lacks a graph
    or a field that this takes.
    """
    file = bundle / "bundle.json"
    manifest = parse_json(file.read_bytes(), file)
    check_format(manifest.get("format_version"), file)
    if missing := READ - manifest.keys():
        raise InputError(f"{file} lacks {', '.join(sorted(missing))}: export the bundle again")
    check_sums(bundle, manifest["files"])
    progress("finding the attention that aligns, by occlusion")
    if guided is None:
        given, surely = guided_of(manifest)
    else:
        given = Candidate((guided[0],), (guided[1],), 0)
    choice, count = find(bundle, manifest, sources, texts, given, surely)
    sentence = say(choice, count, manifest["config"]["num_heads"])
    progress(sentence)
    files = manifest.pop("files")
    with changed(bundle) as new:
        write_card(new, sentence, files)
        manifest |= {"alignment": describe(choice, count), "files": files}
        content = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
        replace(new / "bundle.json", content)
    return sentence


def check_format(version: Any, file: Path) -> None:
    """Raise InputError if a bundle has another format than this Heed reads."""
    if version == FORMAT_VERSION:
        return
    way_out = "export it again with `heed export RUN BUNDLE`, or convert its checkpoint again"
    if isinstance(version, int) and version > FORMAT_VERSION:
        way_out = "install a later version of Heed"
    raise InputError(
        f"{file} has format {version}; this Heed reads format {FORMAT_VERSION}: {way_out}"
    )


def check_sums(bundle: Path, files: dict[str, dict[str, Any]]) -> None:
    """Raise InputError unless the bundle has all its files, each with its SHA-256."""
    for name, written in files.items():
        path = bundle / name
        if not path.is_file() or hash_file(path) != written["sha256"]:
            raise InputError(
                f"{path} is missing, or is not the file that was exported: copy or export the"
                " bundle again"
            )


def guided_of(manifest: dict[str, Any]) -> tuple[Candidate | None, bool]:
    """Return the attention that a bundle says training guided to alignments, and whether that is
    sure: it is not if the bundle is of a checkpoint none of whose files has GUIDED in its name."""
    found = manifest.get("alignment") or {}
    if not found.get("guided"):
        return None, False
    files = manifest.get("origin", {}).get("files")
    given = Candidate(tuple(found["layers"]), tuple(found["heads"]), found["shift"])
    return given, not files or any(GUIDED in name for name in files)


def find(
    bundle: Path,
    manifest: dict[str, Any],
    sources: Sequence[list[int]],
    texts: Sequence[str],
    guided: Candidate | None = None,
    surely: bool = True,
) -> tuple[Choice, int]:
    """Return the attention that agrees best with occlusion, and on how many sources."""
    config, limits = manifest["config"], manifest["limits"]
    source, target = (
        Tokenizer.from_file(str(bundle / manifest["tokenizers"][side]))
        for side in ("source", "target")
    )
    reader = Reader(manifest, source)
    start = reader.start
    graphs = Graphs(
        folder_of(bundle, manifest),
        start,
        [manifest["eos_id"], *manifest.get("other_eos_ids", [])],
        [each for each in manifest["decoding"]["suppress_tokens"] if isinstance(each, int)],
        limits["max_target_length"] + 1 - len(start) - 1,  # the last token is read, too
        config["target_vocab_size"],
    )
    chosen = spread(sources or reader.sources(texts), config)
    pairs = [pair for pair in graphs.decode(chosen) if pair.target]
    # null: the model was trained to read it as any text
    unknown_id = unknown_id_of(source) if manifest["unknown_id"] is None else None
    specials = specials_of(manifest, source), specials_of(manifest, target)
    labels = occlude(graphs, pairs, unknown_id, specials)
    attended = zip(graphs.attend(pairs), labels, strict=True)
    choice = choose(attended, config["num_decoder_layers"], config["num_heads"], guided, surely)
    return choice, len(pairs)


def folder_of(bundle: Path, manifest: dict[str, Any]) -> Path:
    """Return the folder of graphs to look in: those of fp32, if there are any."""
    for precision in FOLDERS:
        if precision in (held := manifest["precisions"]):
            if missing := [graph for graph in NEEDED if graph not in held[precision]]:
                raise InputError(
                    f"{bundle} lacks the graphs {', '.join(missing)}, by which its alignment is"
                    " found: export it again"
                )
            return bundle / precision
    raise InputError(f"{bundle} has no graphs: export it again")


def specials_of(manifest: dict[str, Any], tokenizer: Tokenizer) -> set[int]:
    """Return the ids that are not text: special tokens, and those of templates and languages."""
    added = tokenizer.get_added_tokens_decoder()
    ids = {manifest["pad_id"], manifest["eos_id"]}
    ids |= {i for i, token in added.items() if token.special}
    for template in ("source_prefix", "source_suffix", "decoder_start"):
        ids |= {each for each in manifest[template] if isinstance(each, int)}
    for side in ("source", "target"):
        ids |= {i for code in manifest["languages"][side].values() for i in code}
    return ids


def describe(choice: Choice, sources: int) -> dict[str, Any] | None:
    """Return the key `alignment` of bundle.json (docs/bundle.md)."""
    second = {"sources": sources, "second": choice.best_other.describe()}
    if choice.is_guided and sources:
        return {**choice.chosen.describe(), "guided": True, **second}
    return {**choice.chosen.describe(), **second} if choice.holds else None


def say(choice: Choice, sources: int, heads: int) -> str:
    """Return a sentence about the alignment, for people, and one about a head that was perhaps
    guided and is not chosen."""
    sentence = say_chosen(choice, sources, heads)
    if choice.guided is None or choice.is_guided or not choice.tokens:
        return sentence
    name = name_of(choice.guided, heads)
    return (
        f"{sentence} The checkpoint names {name} for it, which finds it for"
        f" {choice.guided.agreement:.1%}: training hardly guided it."
    )


def say_chosen(choice: Choice, sources: int, heads: int) -> str:
    nothing = (
        f"no target token of {sources} sources depends on one source token more than on others."
    )
    measured = f"{choice.tokens} target tokens of {sources} sources that depend on one source token"
    best, second = choice.ranked
    if choice.is_guided:
        other, why = choice.best_other, "as training guided it"
        if not choice.surely:
            why = "which the checkpoint names for it"
        named = f"Targets are aligned by {name_of(choice.chosen, heads)}, {why}"
        if not choice.tokens:
            return f"{named}. Occlusion cannot say how well: {nothing}"
        return (
            f"{named}: of {measured}, as occlusion shows, it finds that one for"
            f" {choice.chosen.agreement:.1%}; the best other, {name_of(other, heads)}, for"
            f" {other.agreement:.1%}, chance for {choice.chance:.1%}."
        )
    if not choice.tokens:
        return f"No attention aligns: {nothing}"
    name = name_of(best, heads)
    if not choice.holds:
        return (
            f"No attention aligns: of {measured}, as occlusion shows, the best ({name}) finds that"
            f" one for {best.agreement:.1%}, chance for {choice.chance:.1%}."
        )
    return (
        f"Targets are aligned by {name}: of {measured}, as occlusion shows, they find that one for"
        f" {best.agreement:.1%}; {name_of(second, heads)} for {second.agreement:.1%}, chance for"
        f" {choice.chance:.1%}."
    )


def name_of(ranked: Ranked, heads: int) -> str:
    """Return a candidate in words, such as "all heads of layer 3"."""
    candidate = ranked.candidate
    layers = ", ".join(map(str, candidate.layers))
    chosen = "all heads" if len(candidate.heads) == heads else f"head {candidate.heads[0]}"
    moved = ", in the step that reads the token" if candidate.shift else ""
    return f"{chosen} of layer{'s' * (len(candidate.layers) > 1)} {layers}{moved}"


def write_card(bundle: Path, sentence: str, files: dict[str, Any]) -> None:
    """Say it in the model card, if there is one, and put its new size and hash into `files`."""
    path = bundle / CARD
    if CARD not in files:
        return
    text = SECTION.sub("\n\n", path.read_text(encoding="utf-8")).rstrip("\n")
    replace(path, f"{text}\n\n{TITLE}\n{fill(sentence, WIDTH)}\n")
    files[CARD] = {"size": path.stat().st_size, "sha256": hash_file(path)}


def replace(file: Path, text: str) -> None:
    replace_whole(file, lambda new: new.write_text(text, encoding="utf-8"))
