"""The flags of `python -m service`, one for each setting."""

from argparse import ArgumentParser, BooleanOptionalAction
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn

from pydantic.fields import FieldInfo

from service.errors import StartupError
from service.settings.settings import Settings
from service.settings.types import split_at_commas
from service.settings.variables import PREFIX, guess

ABOUT = (
    "Serve encoder-decoder Transformers. Each flag is also an environment variable, which its"
    " description names."
)


class FlagParser(ArgumentParser):
    advice = ""  # ends each error

    def error(self, message: str) -> NoReturn:
        # argparse quotes the value of a flag that takes none: it may be a key.
        reason = message.partition(" '")[0]
        raise StartupError(f"{reason}; {self.advice}")

    @property
    def flags(self) -> list[str]:
        return [flag for action in self._actions for flag in action.option_strings]

    def values_of(self, flag: str) -> list[str]:
        """Return the values between which a flag chooses; none if it takes others."""
        (chosen,) = (each.metavar for each in self._actions if flag in each.option_strings)
        return chosen.split("|") if isinstance(chosen, str) else []


def read_settings(
    arguments: Sequence[str], parser: FlagParser | None = None, bundles: Sequence[Path] = ()
) -> Settings:
    """Return the settings by flags and variables; `bundles` come before those of --bundles. Raise
    StartupError for wrong flags, and ValidationError for wrong values."""
    parser = parser or make_parser()
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise StartupError(f"{describe_unknown_flag(unknown[0])} {parser.advice}")
    values = {name: value for name, value in vars(given).items() if value is not None}
    if bundles:
        values["bundles"] = [*bundles, *values.get("bundles", [])]
    return Settings(**values)


def make_parser(program: str = "python -m service") -> FlagParser:
    parser = FlagParser(program, description=ABOUT, allow_abbrev=False)
    parser.advice = f"{program} --help lists all flags"
    parser.usage = "%(prog)s [flags]"
    for name, field in Settings.model_fields.items():
        note = f"{PREFIX}{name.upper()}, default: {show(field.default)}"
        text = f"{field.description} ({note})".replace("%", "%%")
        parser.add_argument(flag_of(name), help=text, **kind_of(field))
    return parser


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def kind_of(field: FieldInfo) -> dict[str, Any]:
    if isinstance(field.default, bool):
        return {"action": BooleanOptionalAction}
    if isinstance(field.default, StrEnum):
        return {"metavar": "|".join(type(field.default))}
    if isinstance(field.default, list):
        return {"action": "extend", "type": split_at_commas}
    return {}


def show(default: Any) -> str:
    """Return a default as a user would type it, if it can be typed."""
    match default:
        case None | [] | "":
            return "not set"
        case bool():
            return str(default).lower()
        case float():
            return f"{default:g}"
        case list():
            return ",".join(map(str, default))  # pyright: ignore[reportUnknownArgumentType]
        case _:
            return str(default)


def describe_unknown_flag(argument: str) -> str:
    """Return what is wrong with an argument, without its value: it may be a key."""
    if not argument.startswith("--"):
        return (
            "unexpected argument: give flags such as --port 9000, and separate lists with commas;"
        )
    flag = argument.partition("=")[0]
    flags = [flag_of(name) for name in Settings.model_fields]
    return f"the flag {flag} is unknown{guess(flag, flags, '--')}"
