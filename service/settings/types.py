"""Types of settings that are lists or texts with rules of their own."""

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, IPvAnyNetwork
from pydantic_settings import NoDecode

ORIGIN = re.compile(r"\*|(https?)://(\[[0-9a-f:]+\]|[\w.-]+)(:\d+)?", re.ASCII)
DEFAULT_PORTS = {"http": ":80", "https": ":443"}
PROTOCOL_NAMES = ("open-inference", "openai", "libretranslate", "hugging-face")
SEGMENTS = re.compile(r"(/[\w.~-]+)*", re.ASCII)


def split_at_commas(value: object) -> object:
    if not isinstance(value, str):
        return value
    return [part.strip() for part in value.split(",") if part.strip()]


def check_names(hosts: list[str]) -> list[str]:
    """Raise ValueError for a name that no Host header can have."""
    for host in hosts:
        if not re.fullmatch(r"\*|(\*\.)?[\w.-]+", host):
            raise ValueError(
                f"has {host!r}: give names without scheme and port, such as heed.example.com"
            )
    return hosts


def check_origins(origins: list[str]) -> list[str]:
    """Return the origins in lower case, as browsers send them. Raise ValueError for an origin that
    no browser sends."""
    origins = [origin.lower() for origin in origins]
    for origin in origins:
        found = ORIGIN.fullmatch(origin)
        if not found:
            raise ValueError(
                f"has {origin!r}: give scheme and host without a path, such as https://example.com"
            )
        scheme, _, port = found.groups()
        if port and port == DEFAULT_PORTS[scheme]:
            raise ValueError(
                f"has {origin!r}: give {origin.removesuffix(port)}, as browsers leave out {port}"
            )
    return origins


def check_root_path(prefix: str) -> str:
    """Return the prefix without a slash at its end. Raise ValueError if it cannot begin a path."""
    prefix = prefix.rstrip("/")
    if not SEGMENTS.fullmatch(prefix):
        raise ValueError(f"is {prefix!r}: give a path without escapes, such as /heed")
    return prefix


def check_protocols(names: list[str]) -> list[str]:
    """Return each name once. Raise ValueError for a protocol that the service does not have."""
    for name in names:
        if name not in PROTOCOL_NAMES:
            near = get_close_matches(name.lower(), PROTOCOL_NAMES, 1)
            advice = f"did you mean {near[0]}? " if near else ""
            raise ValueError(f"has {name!r}: {advice}the protocols are {', '.join(PROTOCOL_NAMES)}")
    return list(dict.fromkeys(names))


SplitAtCommas = BeforeValidator(split_at_commas)
Folders = Annotated[list[Path], NoDecode, SplitAtCommas]
HostNames = Annotated[list[str], NoDecode, SplitAtCommas, AfterValidator(check_names)]
Networks = Annotated[list[IPvAnyNetwork], NoDecode, SplitAtCommas]
Origins = Annotated[list[str], NoDecode, SplitAtCommas, AfterValidator(check_origins)]
Protocols = Annotated[list[str], NoDecode, SplitAtCommas, AfterValidator(check_protocols)]
RootPath = Annotated[str, AfterValidator(check_root_path)]
