"""How large an answer may become, known before anything of it is computed."""

from collections import Counter
from collections.abc import Iterator

from fastapi import Request

from service.api import requests
from service.api.validation import read_selection
from service.engine.model import Model
from service.errors import TooLarge
from service.http.waiting import settings_of

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
    wanted: requests.AttentionSelection | None,
    lengths: Counter[tuple[int, int, int]],
    advice: str = "",
    besides: int = 0,
) -> None:
    """`lengths`: how often there is a source of so many tokens, with at most so many steps, and
    with what the decoder reads for them; `besides`: bytes of other arrays; `advice` as of
    check_size. Raises TooLarge, naming a selection that would fit if there is one."""
    if wanted is None:
        return
    limit = settings_of(request).max_answer_bytes

    def needed(selection: requests.AttentionSelection) -> int:
        return attention_bytes(model, selection, lengths) + besides

    if needed(wanted) <= limit:
        return
    advice = f"{SEND_LESS}{advice}"
    if fitting := next((less for less in smaller(wanted) if needed(less) <= limit), None):
        advice = f'"attention": {fitting.model_dump_json(exclude_defaults=True)} would fit'
    raise TooLarge.at(
        "/attention",
        f"needs {needed(wanted)} bytes and the limit is {limit}, of an answer as float32 and of"
        f" what is computed for one source: {advice}",
    )


def attention_bytes(
    model: Model, wanted: requests.AttentionSelection, lengths: Counter[tuple[int, int, int]]
) -> int:
    """Bytes of attention in the answer, or of the largest forward pass if that is more.

    `lengths` counts sources by (source tokens, steps, positions the decoder reads).
    """
    selection, config = read_selection(wanted, model), model.engine.bundle.manifest.config
    answer = sum(count * selection.nbytes(*each) for each, count in lengths.items())
    return max(answer, *(selection.pass_nbytes(config, s, read) for s, _, read in lengths))


def decoder_positions(model: Model, forced: int, steps: int) -> int:
    """Positions that the decoder reads for `steps` tokens after `forced` ones."""
    return len(model.engine.bundle.manifest.decoder_start_ids) - 1 + forced + steps


def smaller(wanted: requests.AttentionSelection) -> Iterator[requests.AttentionSelection]:
    """Less of the same, then less still; at last each kind alone."""
    if wanted.reduce_heads == "none":
        wanted = wanted.model_copy(update={"reduce_heads": "mean"})
        yield wanted
    if wanted.reduce_layers == "none":
        wanted = wanted.model_copy(update={"reduce_layers": "mean"})
        yield wanted
    for kind in sorted(wanted.kinds):  # cross first
        if kind == "cross" or not wanted.alignment:
            rows = None if kind == "encoder" else wanted.rows  # which encoder alone has none of
            alone = wanted.model_copy(update={"kinds": [kind], "rows": rows})
            yield alone
            if kind != "encoder" and rows is None:
                yield alone.model_copy(update={"rows": [0, FEW_ROWS]})
