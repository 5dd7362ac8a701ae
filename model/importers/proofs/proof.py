"""A proof of a conversion, and the table that `convert` prints of all of them."""

from collections.abc import Sequence
from dataclasses import dataclass

NETWORK = "network"  # the name of its proof
LEFT_OUT = "left out"  # the verdict on int8 that changes what the model writes


@dataclass(frozen=True, slots=True)
class Proof:
    """A line of the table: what was compared, with what, and the result.

    `otherwise` is the verdict of a line that neither holds nor fails.
    """

    name: str
    reference: str
    result: str
    holds: bool | None
    otherwise: str = "not compared"

    @property
    def verdict(self) -> str:
        return self.otherwise if self.holds is None else "holds" if self.holds else "FAILS"


def as_text(proofs: Sequence[Proof]) -> str:
    """Return the proofs as a table in Markdown."""
    rows = [f"| {p.name} | {p.reference} | {p.result} | {p.verdict} |" for p in proofs]
    return "\n".join(["| proof | compared with | result | |", "|---|---|---|---|", *rows])
