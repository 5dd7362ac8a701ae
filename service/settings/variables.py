"""Tell a mistyped environment variable from those that Kubernetes and Docker set."""

import difflib
import re
from collections.abc import Mapping, Sequence

PREFIX = "HEED_"
CLIENT_KEY = "HEED_API_KEY"  # not a setting: the key that commands send with --url
# Both set variables with such values or names in every container if a service is named heed or
# heed-...: HEED_PORT=tcp://10.0.0.1:8000, HEED_SERVICE_HOST=10.0.0.1
LINKS = ("tcp://", "udp://", "sctp://")
SERVICE_LINK = re.compile(r".*SERVICE_(HOST|PORT)(_\w+)?|(.*_)?PORT_\d+_(TCP|UDP|SCTP)(_\w+)?")


def check_environment(variables: Mapping[str, str], known: Sequence[str]) -> None:
    """Raise ValueError naming the variables that start with HEED_ and are neither
    `known` nor of clients."""
    faults: list[str] = []
    for name, value in variables.items():
        variable = name.upper()
        if not variable.startswith(PREFIX) or variable in known or name == CLIENT_KEY:
            continue
        if SERVICE_LINK.fullmatch(variable) or value.startswith(LINKS):
            continue
        faults.append(f"the environment variable {name} is unknown{guess(variable, known, PREFIX)}")
    if faults:
        raise ValueError(" ".join([*faults, "heed serve --help lists all settings"]))


def guess(name: str, known: Sequence[str], prefix: str) -> str:
    """Return the end of a sentence that says which known name, if any, is much like `name`. All
    begin with the prefix."""
    rest = {each.removeprefix(prefix): each for each in known}
    near = difflib.get_close_matches(name.removeprefix(prefix), rest, n=1)
    return f": did you mean {rest[near[0]]}?" if near else ";"
