"""Tell a mistyped environment variable from those that Kubernetes and Docker set."""

import difflib
import re
from collections.abc import Mapping, Sequence

# Both set variables with such values or names in every container if a service is named heed or
# heed-...: HEED_PORT=tcp://10.0.0.1:8000, HEED_SERVICE_HOST=10.0.0.1
LINKS = ("tcp://", "udp://", "sctp://")
SERVICE_LINK = re.compile(r".*SERVICE_(HOST|PORT)(_\w+)?|(.*_)?PORT_\d+_(TCP|UDP|SCTP)(_\w+)?")


def check_environment(variables: Mapping[str, str], known: Sequence[str]) -> None:
    """Raise ValueError naming a variable that starts with HEED_ and is not `known`."""
    for name, value in variables.items():
        variable = name.upper()
        if not variable.startswith("HEED_") or variable in known:
            continue
        if SERVICE_LINK.fullmatch(variable) or value.startswith(LINKS):
            continue
        (nearest,) = difflib.get_close_matches(variable, known, n=1, cutoff=0)
        raise ValueError(
            f"the environment variable {name} is unknown: did you mean {nearest}?"
            " python -m service --help lists all settings"
        )
