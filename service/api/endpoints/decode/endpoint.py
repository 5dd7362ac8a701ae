"""POST /v1/decode."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import starmap
from typing import NamedTuple

import numpy as np
from starlette.responses import Response

from service.api.answering.aligned import read_aligned
from service.api.answering.respond import Computed, is_cut, respond, write_partial
from service.api.answering.serialize import join_results, write_decoded
from service.api.answering.simultaneous import add_committed
from service.api.answering.stream import EVENT_STREAM, Stream
from service.api.answering.words import add_occluded, add_words
from service.api.endpoints.decode.body import (
    DecodeRequest,
    check_edits,
    check_growing,
    check_source_share,
)
from service.api.endpoints.decode.drafts import check_draft, read_drafts
from service.api.reading.answer_size import (
    check_decoded,
    check_words,
    held_nbytes,
    hypotheses_nbytes,
)
from service.api.reading.call import Call
from service.api.reading.faults import Faults
from service.api.reading.search import read_search, read_searches
from service.api.reading.selection import can_align, read_ablation, read_selection
from service.api.reading.texts import Sources, TextField, count_texts, read_languages, read_sources
from service.attention import NO_ATTENTION
from service.errors import DeadlineExceeded, Overloaded, PassFailed
from service.formats.json import JSON, Document
from service.http.middleware.answers import negotiate
from service.search.options import SearchOptions
from service.serving.model import Model
from service.text.tokens import Tokens
from service.wire import Answer, Entry

DEFAULT_HOLD = 4  # tokens: two words of pieces, or so


async def decode(body: DecodeRequest, call: Call) -> Response:
    """Generate a target for every source, by greedy search, beam search or sampling, and optionally
    return the attention weights of each target.

    With `stream`, the answer is a stream of server-sent events, whose data is JSON:

    - `token`, for greedy search and sampling: a StreamedToken. The texts of a hypothesis, joined,
      are its whole text.
    - `beam`, for beam search: a StreamedBeam, which replaces the one before.
    - `done`, at the end: the complete answer, as without `stream`.
    - `error`, at the end if something failed: a problem document.

    With `partial`, `done` holds the problems of the sources that failed.

    Comments are sent now and then to keep the connection open.
    """
    negotiate(call, [EVENT_STREAM, JSON] if body.stream else [JSON])
    if body.stream:
        return await Stream(call, *await prepare(body, call)).respond()
    return await respond(call, await run_decode(body, call))


async def run_decode(
    body: DecodeRequest,
    call: Call,
    pointer: str = "/source",
    *,
    whole: bool = False,
    apart: bool = False,
) -> Computed:
    """Decode the sources, which the body has at `pointer`. `whole`: decode sources again whose
    targets the model's own max_new_tokens has cut. `apart`: decode each text between two tags by
    itself, which needs no alignment.

    Raise the errors of the endpoint.
    """
    prepared = await prepare(body, call, pointer, apart=apart)
    model, entries, sources, write, faults, complete = prepared
    answers = await call.submit_and_wait(model, entries, faults, sources.results)
    if whole:
        answers = await decode_cut(call, model, entries, answers)
    if complete:
        await complete(answers)
    return Computed(lambda: write(answers), answers, faults.size)


async def decode_cut(
    call: Call, model: Model, entries: Sequence[Entry], answers: Sequence[Answer]
) -> list[Answer]:
    """Return the answers, with new ones in the place of those that were cut: up to the model's last
    position. An answer stays cut if this is not enough, or if there is no room or time for it.

    Not every source is decoded that far at first: the scheduler and the budget of answers would
    reserve for all of them what only few need.
    """
    most = model.manifest.target_positions
    longer = {
        i: entry._replace(search=entry.search._replace(max_new_tokens=most))
        for i, (entry, answer) in enumerate(zip(entries, answers, strict=True))
        if entry.search and is_cut(answer) and entry.search.max_new_tokens < most
    }
    nbytes = sum(hypotheses_nbytes(each.search, 1) for each in longer.values() if each.search)
    if not longer or nbytes > call.settings.max_answer_bytes:
        return [*answers]
    try:
        await call.hold(held_nbytes(0, nbytes))
        decoded = await call.submit_and_wait(model, [*longer.values()])
    except (Overloaded, DeadlineExceeded, PassFailed):
        return [*answers]
    finished = dict(zip(longer, decoded, strict=True))
    every = [finished.get(i, answer) for i, answer in enumerate(answers)]
    call.note(every)
    return every


class Prepared(NamedTuple):
    """The entries of a request, and a function that makes the document of their answers. If there
    is a `complete`, it adds to the answers first, by passes of its own."""

    model: Model
    entries: list[Entry]
    sources: Sources
    write: Callable[[Sequence[Answer]], Document]
    faults: Faults
    complete: Callable[[Sequence[Answer]], Awaitable[None]] | None


async def prepare(
    body: DecodeRequest, call: Call, pointer: str = "/source", *, apart: bool = False
) -> Prepared:
    """Validate a request, and wait until its answer may take memory."""
    model = call.use_model(body.model)
    faults = Faults(body.partial)
    selection = read_selection(body.attention, model, faults) if body.attention else NO_ATTENTION
    most = body.num_hypotheses if body.draft is None else 1  # else `check_draft` refuses more
    search = await read_search(
        call, body, model, faults, most, body.top_log_probs, entropies=body.words
    )
    check_fields(body, model, search, faults, apart)
    ablated = await read_ablation(call, body.ablate, model, faults) if body.ablate else ()
    call.check_line(hypotheses_nbytes(search, count_texts(body.source)))
    languages = read_languages(body, model, body.source, faults)
    source = TextField(pointer, body.source, languages.source, markup=body.markup, apart=apart)
    sources = await read_sources(call, source, body.split, faults)
    searches = await read_searches(call, body, model, search, sources.tokens, faults)
    if body.draft is not None:
        sources, searches = await read_drafts(call, body, model, search, sources, faults)
    faults.raise_all(count_texts(body.source))
    every = not body.source_final or body.replace_unknown or (body.words and can_align(model))
    aligns = [True] * len(sources.tokens) if every else sources.marked
    limit = call.settings.max_answer_bytes
    nbytes = check_decoded(
        limit, model, search, body.attention, selection, sources.tokens, any(aligns)
    )
    if body.words:
        nbytes += check_words(body.source_share, call.settings, search, sources.tokens)
    await call.hold(nbytes)
    entry = partial(
        Entry,
        selection=selection,
        streams=body.stream,
        language=languages.target_ids,
        ablated=ablated,
    )
    entries = [
        entry(np.array(source.ids), each, aligns=aligned or selection.alignment == "model")
        for source, each, aligned in zip(sources.tokens, searches, aligns, strict=True)
    ]
    write = partial(write_answers, call, body, model, entries, sources, faults)
    occlude = partial(add_occluded, call, model, entries, sources, faults)
    complete = occlude if body.source_share else None
    return Prepared(model, entries, sources, write, faults, complete)


def check_fields(
    body: DecodeRequest, model: Model, search: SearchOptions, faults: Faults, apart: bool
) -> None:
    """Raise NotFound if the model lacks what a field needs. Add a fault for each field that
    contradicts others. `apart` is that of `run_decode`."""
    if body.markup or body.replace_unknown:
        check_edits(body, model, faults, apart)
    if body.source_share:
        check_source_share(body, model, faults)
    if body.draft is not None:
        check_draft(body, model, search, faults)
    if body.hold or not body.source_final:
        check_growing(body, model, faults)


def write_answers(
    call: Call,
    body: DecodeRequest,
    model: Model,
    entries: Sequence[Entry],
    sources: Sources,
    faults: Faults,
    answers: Sequence[Answer],
) -> Document:
    """Return the answer, with a problem in the place of each source that has failed."""
    asked = zip(entries, sources.tokens, answers, strict=True)
    write_valid = partial(write_answer, body, model, sources, faults)
    return write_partial(call, faults, sources.results, asked, write_valid)


def write_answer(
    body: DecodeRequest,
    model: Model,
    sources: Sources,
    faults: Faults,
    answered: Sequence[tuple[Entry, Tokens, Answer]],
) -> Document:
    """Return the answer, given each entry that has not failed with its source and its answer."""
    document = write_decoded(model, answered)
    if body.words:
        add_words(model, answered, document)
    if not body.source_final:
        add_committed(model, body.hold or DEFAULT_HOLD, answered, document)
    if not (body.markup or body.replace_unknown):
        return join_results(sources, document, faults.failed)
    read = partial(read_aligned, model, replace_unknown=body.replace_unknown)
    aligned = list(starmap(read, answered))
    for result, targets in zip(document["results"], aligned, strict=True):
        for hypothesis, target in zip(result["hypotheses"], targets, strict=True):
            hypothesis["text"] = target.text
    return join_results(sources, document, faults.failed, aligned)
