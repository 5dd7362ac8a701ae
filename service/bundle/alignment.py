"""The alignment of a bundle: which attention tells the source token that a target token is of."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.errors import StartupError

AlignedIndices = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=1000)]


class Candidate(BaseModel):
    """The mean of these heads of these layers, and how often it agreed with occlusion.

    With shift 1, a token is aligned by the row of the step that reads it instead of the row of the
    step that predicts it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    layers: AlignedIndices
    heads: AlignedIndices
    shift: Literal[0, 1]
    measure: Literal["weight"]
    agreement: Annotated[float, Field(ge=0, le=1)]


class AlignedHeads(Candidate):
    """The candidate that agreed most often on this many `sources`, and the `second` best; or the
    one that training `guided` to alignments, and the best other one."""

    guided: bool = Field(default=False, exclude_if=lambda guided: not guided)
    sources: Annotated[int, Field(ge=1)]
    second: Candidate | None = None


def check_heads(alignment: AlignedHeads, layers: int, heads: int, path: Path) -> None:
    """Raise StartupError for an index that the decoder lacks, or that is named twice."""
    candidates = {"alignment": alignment, "alignment.second": alignment.second}
    for name, candidate in candidates.items():
        if candidate is None:
            continue
        for field, indices, count in (
            ("layers", candidate.layers, layers),
            ("heads", candidate.heads, heads),
        ):
            if max(indices) >= count:
                raise StartupError(
                    f"{path}: {name}.{field} names {max(indices)}, but the decoder has 0 to"
                    f" {count - 1}: run `heed align` on the bundle again"
                )
            if len({*indices}) < len(indices):
                raise StartupError(
                    f"{path}: {name}.{field} is {indices}, which names one twice: name each once"
                )
