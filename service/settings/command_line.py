"""The flags of `python -m service`, one for each setting."""

from argparse import ArgumentParser, BooleanOptionalAction
from enum import StrEnum
from typing import Any, NoReturn

from pydantic.fields import FieldInfo

from service.errors import StartupError
from service.settings.settings import Settings
from service.settings.types import split_at_commas
from service.settings.variables import PREFIX, guess

ADVICE = "python -m service --help lists all flags"
ABOUT = (
    "Serve encoder-decoder Transformers. Each flag is also an environment variable, which its"
    " description names."
)


class FlagParser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # argparse quotes the value of a flag that takes none: it may be a key.
        reason = message.partition(" '")[0]
        raise StartupError(f"{reason}; {ADVICE}")


def read_settings(arguments: list[str]) -> Settings:
    """Return the settings by flags and variables. Raise StartupError for wrong flags, and
    ValidationError for wrong values."""
    parser = make_parser()
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise StartupError(f"{describe_unknown_flag(unknown[0])} {ADVICE}")
    return Settings(**{name: value for name, value in vars(given).items() if value is not None})


def make_parser() -> FlagParser:
    parser = FlagParser("python -m service", description=ABOUT, allow_abbrev=False)
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
