"""POST /v1/attention."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from pydantic import BaseModel, Field
from starlette.responses import Response

from service.api.answering.examples import SIMPLE, Examples
from service.api.answering.respond import Computed, negotiate_format, respond, write_partial
from service.api.answering.responses import AttentionBlock, FailedResult, ModelResponse
from service.api.answering.serialize import write_attention
from service.api.reading.answer_size import (
    SEND_LESS,
    SEND_LESS_OR_LOWER,
    Lengths,
    check_attention,
    held_nbytes,
    longest,
    measure,
)
from service.api.reading.call import Call
from service.api.reading.faults import Faults
from service.api.reading.field_types import Partial, SourceField, TextsOrIdLists
from service.api.reading.requests import Ablate, AttentionSelection, Searching
from service.api.reading.search import read_search, read_searches, refuse_search
from service.api.reading.selection import read_ablation, read_selection
from service.api.reading.texts import (
    TextField,
    count_texts,
    read_languages,
    read_pairs,
    tokenize_texts,
)
from service.formats.json import Document
from service.search.options import SearchOptions
from service.serving.model import Model
from service.text.tokens import Tokens
from service.wire import Entry

EXAMPLES: Examples = {
    "decoded": {
        "summary": "Cross-attention of the last layer, for the pronunciation the model decodes",
        "value": {"source": "thought", "attention": {"layers": [-1]}},
    },
    "alignment": {
        "summary": "Align sounds with letters, by the attention that aligns best in this model",
        "value": {
            "source": "thought",
            "attention": {
                "reduce_heads": "mean",
                "reduce_layers": "mean",
                "alignment": "model",
                "decimals": 2,
            },
        },
    },
    "norms": {
        "summary": "What each letter gives each sound in the last layer: weights times norms",
        "value": {
            "source": "thought",
            "attention": {"layers": [-1], "reduce_heads": "mean", "measure": "norm", "decimals": 2},
        },
    },
    "rollout": {
        "summary": "Attention rollout: how all layers of the encoder together mix the letters",
        "value": {
            "source": "thought",
            "attention": {
                "kinds": ["encoder"],
                "reduce_heads": "mean",
                "reduce_layers": "rollout",
                "decimals": 2,
            },
        },
    },
    "given": {
        "summary": "All three kinds of attention in one head, for a given pronunciation",
        "value": {
            "source": "read",
            "target": "R EH1 D",
            "attention": {"kinds": ["encoder", "decoder", "cross"], "layers": [0], "heads": [0]},
        },
    },
    SIMPLE: {"value": {"source": "Hello", "attention": {"layers": [-1]}}},
}


class AttentionRequest(Searching):
    source: SourceField
    target: TextsOrIdLists | None = Field(
        default=None,
        description="Targets to show the attention of, one for each source. An end-of-sequence"
        " token is added to texts; ids are used unchanged. null: decode the sources, with the"
        " search options of this request.",
    )
    attention: AttentionSelection = Field(
        default={},
        validate_default=True,
        description="Which attention weights to return. {} selects all cross-attention.",
    )
    ablate: Ablate = Field(default=[])
    partial: Partial = False


class AttentionResult(BaseModel):
    source: str = Field(description="The source as text.")
    target: str = Field(description="The target as text: the one given, or the one decoded.")
    attention: list[AttentionBlock] = Field(description="One block for each requested kind.")


class AttentionAnswer(ModelResponse):
    results: list[AttentionResult | FailedResult] = Field(
        description="One for each source, in their order."
    )


async def attention(body: AttentionRequest, call: Call) -> Response:
    """Return the attention weights of every source with its target: the target that you send or, if
    you send none, the one that the model decodes.

    The Accept header selects the format:

    - application/json, the default.
    - application/npz (read by numpy.load) and application/safetensors: one array per kind, named
      `{result}.0.{kind}`, for example `0.0.cross`. `meta` is the JSON answer without `data`.
    - image/svg+xml and image/png: heatmaps, for a single source.
    - text/html: an interactive page in one file.

    With `partial` the answer is always JSON.
    """
    media_type = negotiate_format(call, count_texts(body.source), body.partial)
    return await respond(call, await run_attention(body, call), media_type)


async def run_attention(body: AttentionRequest, call: Call, *, padded: bool = False) -> Computed:
    """Compute the attention of each source. `padded`: all will be padded to the largest.

    Raise the errors of the endpoint.
    """
    model = call.use_model(body.model)
    faults = Faults(body.partial)
    selection = read_selection(body.attention, model, faults)
    ablated = await read_ablation(call, body.ablate, model, faults) if body.ablate else ()
    languages = read_languages(body, model, body.source, faults)
    source = TextField("/source", body.source, languages.source)
    search, sources, targets = await read_targets(call, model, body, source, faults)
    searches: Sequence[SearchOptions | None] = [None] * len(sources)
    if search:
        searches = await read_searches(call, body, model, search, sources, faults)
    faults.raise_all(count_texts(body.source))
    results = faults.valid(count_texts(body.source))
    lengths = measure_pairs(model, search, sources, targets)
    if padded:
        lengths = [longest(lengths)] * len(lengths)
    advice = SEND_LESS_OR_LOWER if search else SEND_LESS
    limit = call.settings.max_answer_bytes
    nbytes = check_attention(limit, model, body.attention, selection, lengths, advice)
    await call.hold(held_nbytes(nbytes))
    entries = [
        Entry(
            np.array(source.ids),
            each,
            target.ids if target else (),
            selection,
            aligns=selection.aligns,
            language=languages.target_ids,
            ablated=ablated,
        )
        for source, target, each in zip(sources, targets, searches, strict=True)
    ]
    answers = await call.submit_and_wait(model, entries, faults, results)

    def write() -> Document:
        asked = zip(entries, sources, targets, answers, strict=True)
        return write_partial(call, faults, results, asked, partial(write_attention, model))

    return Computed(write, answers, faults.size)


async def read_targets(
    call: Call, model: Model, body: AttentionRequest, source: TextField, faults: Faults
) -> tuple[SearchOptions | None, list[Tokens], Sequence[Tokens | None]]:
    """Return the sources with either the search for their targets, or the targets that are given.

    Add a fault for each search option that is sent together with targets.
    """
    if body.target is None:
        search = await read_search(call, body, model, faults)
        sources = await tokenize_texts(call, source, faults)
        return search, sources, [None] * len(sources)
    refuse_search(body, faults)
    target = TextField("/target", body.target, model.target)
    sources, targets = await read_pairs(call, source, [target], faults)
    return None, sources, targets


def measure_pairs(
    model: Model,
    search: SearchOptions | None,
    sources: Sequence[Tokens],
    targets: Sequence[Tokens | None],
) -> list[Lengths]:
    """Return the lengths of each source and its target, or of the longest that may be decoded."""
    most, prefix = (search.max_new_tokens, len(search.target_prefix)) if search else (0, 0)
    return [
        measure(model, source, len(target) if target else most, prefix)
        for source, target in zip(sources, targets, strict=True)
    ]
