"""Flags of commands: fields of requests, of the same names."""

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args

import click
from click.shell_completion import CompletionItem
from pydantic import BaseModel
from typing_extensions import override

from service.api.reading.requests import AttentionSelection, Searching
from service.attention import (
    AlignmentMethod,
    AttentionKind,
    AttentionMeasure,
    HeadReduction,
    LayerReduction,
)

Command = TypeVar("Command", bound=Callable[..., Any])


class Integers(click.ParamType[Any]):
    """Integers separated by commas, such as 0,-1; or the word all, where that is a value."""

    name = "integers"

    def __init__(self, word: str = "") -> None:
        self.word = word

    @override
    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return f"{self.word}|INTEGER,…" if self.word else "INTEGER,…"

    @override
    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[int] | str:
        if value == self.word:
            return value
        try:
            return [int(part) for part in value.split(",")]
        except ValueError:
            self.fail(f"{value!r} is not a list of integers such as 0,-1", param, ctx)


class SuppressedTokens(click.ParamType[Any]):
    """Token ids separated by commas, and sequences of them by colons, such as 20,8:31."""

    name = "tokens"

    @override
    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "INTEGER[:INTEGER…],…"

    @override
    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[int | list[int]]:
        try:
            parts = [[int(each) for each in part.split(":")] for part in value.split(",")]
        except ValueError:
            self.fail(f"{value!r} is not a list of ids and sequences such as 20,8:31", param, ctx)
        return [part if len(part) > 1 else part[0] for part in parts]


class Names(click.ParamType[Any]):
    """Names out of several, separated by commas."""

    name = "names"

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    @override
    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return f"{'|'.join(self.names)},…"

    @override
    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[str]:
        return value.split(",")  # the request refuses unknown ones

    @override
    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        before, comma, begun = incomplete.rpartition(",")
        names = (name for name in self.names if name.startswith(begun))
        return [CompletionItem(before + comma + name) for name in names]


class Heads(click.ParamType[Any]):
    """Heads of a layer, such as cross:-1:0,1 or encoder:0:all."""

    name = "heads"
    integers = Integers("all")

    @override
    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "KIND:LAYER:HEADS"

    @override
    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, Any]:
        kind, *rest = value.split(":")  # the request refuses unknown kinds
        try:
            layer, heads = rest
            return {
                "kind": kind,
                "layer": int(layer),
                "heads": self.integers.convert(heads, param, ctx),
            }
        except ValueError:
            self.fail(f"{value!r} is not of the form cross:-1:0,1 or encoder:0:all", param, ctx)

    @override
    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        kinds = (f"{kind}:" for kind in get_args(AttentionKind))
        return [CompletionItem(each) for each in kinds if each.startswith(incomplete)]


class OutputFile(click.Path):
    """A file to write. Obstacles are found before the work begins."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        real = real_file(path)
        if not real.parent.is_dir():
            self.fail(f"the folder {real.parent} does not exist", param, ctx)
        if not os.access(real.parent, os.W_OK):
            self.fail(f"the folder {real.parent} cannot be written to", param, ctx)
        if is_standard_output(path):
            advice = "leave out --output, or redirect it elsewhere"
            self.fail(f"standard output goes to {path} already: {advice}", param, ctx)
        is_file = real.is_file() or not os.path.lexists(real)
        if value == "-" or not is_file:
            advice = "without --output, answers go to standard output, which > redirects"
            self.fail(f"{path} is not a file: {advice}", param, ctx)
        return path


def is_standard_output(path: Path) -> bool:
    """Return whether standard output goes to this file, as to /dev/stdout."""
    try:
        return os.path.samestat(path.stat(), os.fstat(1))
    except OSError:  # one of them is closed, or not there
        return False


def real_file(path: Path) -> Path:
    """Return the file that a link leads to, or the path itself if it is not a link."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


class GlossaryFile(click.ParamType[Any]):
    """A file of lines, each with a word of sources, a tab, and what its target must contain."""

    name = "file"
    path = click.Path(exists=True, dir_okay=False, readable=True)

    @override
    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, str]:
        path = Path(os.fsdecode(self.path.convert(value, param, ctx)))
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except UnicodeDecodeError:
            self.fail(f"{path} is not UTF-8", param, ctx)
        entries = dict[str, str]()
        for line in filter(None, lines):
            word, *targets = line.split("\t")
            if len(targets) != 1:
                advice = "give a word, a tab, its target"
                self.fail(f"{path} has the line {line!r}: {advice}", param, ctx)
            if word in entries:
                advice = "give each word once"
                self.fail(f"{path} repeats a word in the line {line!r}: {advice}", param, ctx)
            entries[word] = targets[0]
        return entries


REPEATED = object()  # texts, by a flag that may be given several times

LANGUAGES = {"source_language": str, "target_language": str}
SEARCH = LANGUAGES | {
    "max_new_tokens": int,
    "beam_size": int,
    "length_penalty": float,
    "early_stopping": bool,
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "seed": int,
    "min_new_tokens": int,
    "repetition_penalty": float,
    "no_repeat_ngram_size": int,
    "encoder_repetition_penalty": float,
    "encoder_no_repeat_ngram_size": int,
    "suppress_tokens": SuppressedTokens(),
    "allowed_targets": REPEATED,
    "target_prefix": str,
    "stop": REPEATED,
    "required": REPEATED,
    "glossary": GlossaryFile(),
}
SELECTION = {
    "kinds": Names(get_args(AttentionKind)),
    "layers": Integers("all"),
    "heads": Integers("all"),
    "reduce_heads": click.Choice(get_args(HeadReduction)),
    "reduce_layers": click.Choice(get_args(LayerReduction)),
    "measure": click.Choice(get_args(AttentionMeasure)),
    "rows": Integers(),
    "alignment": click.Choice(get_args(AlignmentMethod)),
    "threshold": float,
    "decimals": int,
}


def flags(kinds: Mapping[str, Any], body: type[BaseModel]) -> Callable[[Command], Command]:
    """Return a decorator that adds a flag for each of these fields of `body`, described as they
    are. A flag that is not given is None, or () if it may be repeated."""

    def add(command: Command) -> Command:
        for name, kind in reversed([*kinds.items()]):
            command = option_of(name, kind, body)(command)
        return command

    return add


def option_of(name: str, kind: Any, body: type[BaseModel]) -> Callable[[Command], Command]:
    flag, text = f"--{name.replace('_', '-')}", description_of(body, name)
    if kind is bool:
        return click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=text)
    if kind is REPEATED:
        return click.option(flag, name, multiple=True, help=f"{text} Repeat it for several.")
    return click.option(flag, name, type=kind, help=text)


def description_of(body: type[BaseModel], name: str) -> str:
    """Return the description of a field, without what null means: such a flag is left out."""
    return (body.model_fields[name].description or "").partition(" null: ")[0]


ablate_flag = click.option(
    "--ablate",
    type=Heads(),
    multiple=True,
    help="Heads that give nothing, such as cross:-1:0,1 for heads 0 and 1 of the last"
    " cross-attention, or encoder:0:all. Repeat it for several.",
)
search_flags = flags(SEARCH, Searching)
language_flags = flags(LANGUAGES, Searching)
selection_flags = flags(SELECTION, AttentionSelection)
bundle_flag = click.option(
    "--bundle",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the model's bundle.  [default: HEED_BUNDLES, else the model that pronounces"
    " English words]",
)


def check_url(_: click.Context, __: click.Parameter, url: str | None) -> str | None:
    if url == "":
        raise click.BadParameter("it is empty: give an address such as http://localhost:8000")
    if url and not url.lower().startswith(("http://", "https://")):
        address = url.rpartition("://")[2]
        raise click.BadParameter(f"{url} has no http:// before it: give http://{address}")
    return url


url_flag = click.option(
    "--url",
    callback=check_url,
    help="Ask the service at this address, such as http://localhost:8000, with the key HEED_API_KEY"
    " if it asks for one.",
)
model_flag = click.option("--model", help="With --url: name of the model, of several.")
json_flag = click.option("--json", "as_json", is_flag=True, help="Print the service's JSON.")


class ModelPlace(NamedTuple):
    """Where a model is."""

    bundle: Path | None
    url: str | None
    model: str | None


def place_flags(command: Command) -> Command:
    """Add the flags that `model_place` reads."""
    return bundle_flag(url_flag(model_flag(command)))


def model_place(values: Mapping[str, Any]) -> ModelPlace:
    """Return the place that flags name. Raise UsageError if they contradict each other."""
    place = ModelPlace(*(values[name] for name in ModelPlace._fields))
    if place.url and place.bundle:
        raise click.UsageError("give --bundle or --url: a service has models of its own")
    if place.model and not place.url:
        raise click.UsageError("--model chooses a model of a service: give its --url as well")
    return place


def given_fields(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the fields of these names whose flags were given."""
    found = {name: value for name, value in values.items() if name in names}
    return {
        name: [*value] if isinstance(value, tuple) else value
        for name, value in found.items()
        if value not in (None, ())
    }
