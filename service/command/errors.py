"""Errors of commands, in one line on standard error."""

import sys
from collections.abc import Generator
from contextlib import contextmanager

from pydantic import ValidationError

from service.errors import Fault, HeedError, StartupError

TEXTS = ("source", "target")  # fields that are arguments or lines
IN_FLAGS = {  # advice for requests, and the same for commands
    'send "split": "sentences"': "give --split sentences",
    'send "partial": true': "give --partial",
}


@contextmanager
def reported() -> Generator[None]:
    """Exit with a line that says what is wrong."""
    try:
        yield
    except ValidationError as error:
        sys.exit(f"heed: {StartupError.of('settings', error)}")
    except StartupError as error:
        sys.exit(f"heed: {error}")
    except HeedError as error:
        sys.exit(f"heed: {describe(error)}")


def describe(error: HeedError, first: int = 1) -> str:
    """Return what is wrong with flags and texts, which are counted from `first`."""
    named = error.change_faults(lambda fault: Fault(place_of(fault.pointer, first), fault.detail))
    text = named.detail + error.advice
    for request, command in IN_FLAGS.items():
        text = text.replace(request, command)
    return text


def place_of(pointer: str, first: int) -> str:
    """Return the flag or the text that a pointer into a request stands for."""
    _, name, *rest = pointer.removeprefix("/attention").split("/")
    if name not in TEXTS:
        return f"--{name.replace('_', '-')}"
    return f"{name} {first + int(rest[0])}" if rest else f"the {name}"
