"""How large an answer may become, known before anything of it is computed."""

from collections.abc import Iterator, Sequence

from fastapi import Request

from service import bodies
from service.errors import TooLarge
from service.exchange import settings_of
from service.served import Model

SEND_LESS = "send fewer or shorter sequences"
LOWER = ", or lower max_new_tokens"
FEW_ROWS = 16  # steps of a target that are advised where all would be too many


def check_size(request: Request, needed: int, advice: str) -> None:
    """Raises TooLarge if the arrays of an answer, as float32, could exceed the limit. `advice` is
    what else the client can do about it."""
    limit = settings_of(request).max_answer_bytes
    if needed > limit:
        raise TooLarge(
            f"the answer could take {needed} bytes as float32 and the limit is {limit}:"
            f" {SEND_LESS}{advice}"
        )


def check_attention(
    request: Request,
    model: Model,
    wanted: bodies.AttentionSelection | None,
    pairs: Sequence[tuple[int, int]],
    advice: str = "",
    besides: int = 0,
) -> None:
    """`pairs`: the lengths of each source and of its target, at most; `besides`: bytes of other
    arrays; `advice` as of check_size. Raises TooLarge, naming a selection that would fit if there
    is one."""
    if wanted is None:
        return
    limit, advice = settings_of(request).max_answer_bytes, f"{SEND_LESS}{advice}"
    computed = model.pass_nbytes(wanted, pairs)
    if computed > limit:
        detail = f"takes {computed} bytes to compute for one source, whatever is selected"
        raise TooLarge.at("/attention", f"{detail}, and the limit is {limit}: {advice}")
    needed = model.attention_nbytes(wanted, pairs) + besides
    if needed <= limit:
        return
    fits = (s for s in smaller(wanted) if model.attention_nbytes(s, pairs) + besides <= limit)
    if fitting := next(fits, None):
        advice = f'"attention": {fitting.model_dump_json(exclude_defaults=True)} would fit'
    detail = f"could take {needed} bytes as float32 and the limit is {limit}: {advice}"
    raise TooLarge.at("/attention", detail)


def smaller(wanted: bodies.AttentionSelection) -> Iterator[bodies.AttentionSelection]:
    """Less of the same, then less still."""
    kind = "cross" if "cross" in wanted.kinds else wanted.kinds[0]
    for less in (
        {"reduce_heads": "mean"} if wanted.reduce_heads == "none" else {},
        {"reduce_layers": "mean"} if wanted.reduce_layers == "none" else {},
        {"kinds": [kind]},
        {} if kind == "encoder" else {"rows": [0, FEW_ROWS]},
    ):
        wanted = wanted.model_copy(update=less)
        yield wanted
