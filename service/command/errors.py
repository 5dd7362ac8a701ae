"""Errors of commands, in one line on standard error."""

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import click
from pydantic import ValidationError

from service.api.reading.faults import PARTIAL
from service.errors import Fault, HeedError, StartupError

TEXT_FIELDS = ("source", "target")  # fields that are arguments or lines
IN_FLAGS = {  # words for requests, and for commands
    'send "split": "sentences"': "give --split sentences",
    'send "partial": true for the answers to the other sources': "give --partial to go on after it",
    'send "partial": true': "give --partial",
    "half a surrogate pair": "a byte that is not UTF-8",
    "send the header Authorization: Bearer KEY": "set HEED_API_KEY to it",
    "so send a list of words": "so give each word by itself",
    "send only": "give only",
}
LINES = "heed.lines"  # in the context of a command: its texts are lines
BEFORE = "set|omit|raise|lower|use|with|or|and"  # words before the name of a field in errors


def report(message: str) -> None:
    click.echo(f"heed: {message}", err=True)


@contextmanager
def reported() -> Generator[None]:
    """Exit with a line that says what is wrong. Click ends a command whose reader has gone."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (ValidationError, StartupError, HeedError, OSError) as error:
        match error:
            case ValidationError():
                report(str(StartupError.of("settings", error)))
            case StartupError():
                report(str(error))
            case HeedError():
                report(describe(error))
            case OSError():
                report(describe_os(error))
        raise click.exceptions.Exit(1) from error


def describe_os(error: OSError) -> str:
    """Return why the system refuses a file."""
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


def describe(error: HeedError) -> str:
    """Return what is wrong with flags and texts, which are counted from 1."""
    named = error.change_faults(lambda fault: Fault(place_of(fault.pointer), fault.detail))
    text = named.detail + error.advice
    for request, command in IN_FLAGS.items():
        text = text.replace(request, command)
    return name_flags(text)


def name_flags(text: str) -> str:
    """Return an error with the flags of the command that is running in the place of fields: such as
    --no-source-final for "set source_final to false"."""
    context = click.get_current_context(silent=True)
    parameters = context.command.params if context else []
    fields = [each.name for each in parameters if each.name and isinstance(each, click.Option)]
    if not fields:
        return text

    def name(found: re.Match[str]) -> str:
        before, field, value = found["before"] or "", found["field"], found["value"]
        flag = field.replace("_", "-")
        if before == "set " and value:
            switched = {"true": f"--{flag}", "false": f"--no-{flag}"}
            return f"give {switched.get(value, f'--{flag} {value}')}"
        return f"{before}--{flag}" + (f" to {value}" if value else "")

    field = f"(?P<field>{'|'.join(fields)})"
    words = re.compile(rf"(?P<before>\b(?:{BEFORE}) ){field}\b(?: to (?P<value>\w+))?")
    return words.sub(name, text)


def error_of(problem: Mapping[str, Any]) -> HeedError:
    """Return the error that a problem document tells of."""
    detail: str = problem["detail"]
    faults = [Fault(**each) for each in problem["errors"]]
    counted = re.match(r"(\d+) faults, the first", detail)
    more = int(counted[1]) - len(faults) if counted else 0
    error = HeedError.of(faults, more) if faults else HeedError(detail)
    error.status, error.code = problem["status"], problem["code"]
    error.advice = PARTIAL if detail.endswith(PARTIAL) else ""
    return error


def text_at(pointer: str) -> tuple[str, int] | None:
    """Return the field and the place of the text that a pointer into a request stands for."""
    name, _, place = pointer.removeprefix("/").partition("/")
    return (name, int(place)) if name in TEXT_FIELDS and place else None


def first_bad(error: HeedError) -> int:
    """Return the place of the first text at fault, or -1 if all of the request is."""
    found = [text_at(fault.pointer) for fault in error.faults]
    return min((place for _, place in filter(None, found)), default=-1)


def place_among(error: HeedError, before: int) -> HeedError:
    """Return the error of a request with the places of its texts among all, of which as many come
    before them."""

    def moved(fault: Fault) -> Fault:
        if not (text := text_at(fault.pointer)):
            return fault
        name, place = text
        return Fault(f"/{name}/{before + place}", fault.detail)

    if not error.faults:
        return error
    placed = type(error).of([*map(moved, error.faults)], error.more)
    placed.advice = error.advice
    return placed


def place_result(result: dict[str, Any], before: int) -> dict[str, Any]:
    """Return a result of a request, as `place_among` does with the problem that it may have."""
    if not (problem := result.get("problem")):
        return result
    error = place_among(error_of(problem), before)
    places = ({"pointer": fault.pointer} for fault in error.faults)
    errors = [old | new for old, new in zip(problem["errors"], places, strict=True)]
    return {"problem": {**problem, "detail": error.detail + error.advice, "errors": errors}}


def place_of(pointer: str) -> str:
    """Return the flag, the line or the text that a pointer into a request stands for."""
    if pointer in ("", "/attention"):
        return "the request"
    if text := text_at(pointer):
        name, place = text
        context = click.get_current_context(silent=True)
        if context is None or LINES not in context.meta:
            return f"{name} {1 + place}"
        return f"line {1 + place}" if name == "source" else f"the {name} of line {1 + place}"
    name = pointer.removeprefix("/attention").removeprefix("/").partition("/")[0]
    return f"the {name}" if name in TEXT_FIELDS else f"--{name.replace('_', '-')}"


def count_lines() -> None:
    """Call the texts of the command that is running, if one is, lines from here on."""
    if context := click.get_current_context(silent=True):
        context.meta[LINES] = True
