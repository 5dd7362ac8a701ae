"""POST /v1/decode."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import starmap
from typing import NamedTuple

import numpy as np
from pydantic import Field
from starlette.responses import Response

from service.api.answering.aligned import read_aligned
from service.api.answering.examples import SIMPLE, Examples
from service.api.answering.respond import Computed, is_cut, respond, write_partial
from service.api.answering.serialize import join_results, write_decoded
from service.api.answering.simultaneous import add_committed
from service.api.answering.stream import EVENT_STREAM, Stream
from service.api.answering.words import add_occluded, add_words
from service.api.reading.answer_size import (
    check_decoded,
    check_words,
    held_nbytes,
    hypotheses_nbytes,
)
from service.api.reading.call import Call
from service.api.reading.faults import Faults
from service.api.reading.field_types import Partial, Source
from service.api.reading.requests import Ablate, AttentionSelection, Searching
from service.api.reading.search import read_search, read_searches
from service.api.reading.selection import (
    can_align,
    check_aligns,
    check_scores,
    read_ablation,
    read_selection,
)
from service.api.reading.texts import (
    Sources,
    Split,
    TextField,
    count_texts,
    read_languages,
    read_sources,
)
from service.attention import NO_ATTENTION
from service.errors import DeadlineExceeded, Invalid, Overloaded, PassFailed
from service.formats.json import JSON, Document
from service.http.middleware.answers import negotiate
from service.serving.model import Model
from service.text.markup.document import Kind
from service.text.tokenizer import Tokens
from service.wire import Answer, Entry

DEFAULT_HOLD = 4  # tokens: two words of pieces, or so

EXAMPLES: Examples = {
    "words": {
        "summary": "Pronounce two words",
        "value": {"source": ["attention", "transformer"]},
    },
    "attention": {
        "summary": "Pronounce a word, with the attention of each sound to the letters",
        "value": {"source": ["attention"], "attention": {"kinds": ["cross"]}},
    },
    "beams": {
        "summary": "Search with four beams and return the best three",
        "value": {"source": "read", "beam_size": 4, "num_hypotheses": 3},
    },
    "samples": {
        "summary": "Draw three samples; the same seed gives the same samples",
        "value": {
            "source": "transformer",
            "temperature": 1.0,
            "top_p": 0.9,
            "seed": 7,
            "num_hypotheses": 3,
        },
    },
    "choice": {
        "summary": "Choose between two given pronunciations",
        "value": {
            "source": "read",
            "allowed_targets": ["R EH1 D", "R IY1 D"],
            "beam_size": 2,
            "num_hypotheses": 2,
        },
    },
    "prefix": {
        "summary": "Continue a given beginning, with the two most probable sounds at each position",
        "value": {"source": "data", "target_prefix": "D AE1", "top_log_probs": 2},
    },
    "stop": {
        "summary": "Stop after a sound, or after a sequence of sounds",
        "value": {"source": "banana", "stop": ["AE1", "AH0 N AA1"]},
    },
    "varied": {
        "summary": "Repeat no pair of sounds, generate at least four, and never generate one",
        "value": {
            "source": "banana",
            "no_repeat_ngram_size": 2,
            "repetition_penalty": 1.2,
            "min_new_tokens": 4,
            "suppress_tokens": [20],
        },
    },
    "ablation": {
        "summary": "Pronounce a word with two heads of the last cross-attention switched off",
        "value": {
            "source": "read",
            "ablate": [{"kind": "cross", "layer": -1, "heads": [0, 1]}],
        },
    },
    "required": {
        "summary": "Pronounce a word with a given sound, or with one of two",
        "value": {"source": "read", "required": [["EH1", "EY1"]]},
    },
    "glossary": {
        "summary": "Require a sound wherever a source has a word",
        "value": {"source": ["read", "tomato"], "glossary": {"tomato": "AA1 T"}},
    },
    "split": {
        "summary": "Pronounce each line, and keep the lines as they are",
        "value": {"source": "  attention\n\ntransformer\n", "split": "sentences"},
    },
    "partial": {
        "summary": "Pronounce the words that the model can read, and say what is wrong with others",
        "value": {"source": ["attention", "7"], "partial": True},
    },
    "confidence": {
        "summary": "Say how probable each sound is, and return the second best answer as well",
        "value": {"source": "attention", "words": True, "beam_size": 2, "num_hypotheses": 2},
    },
    "stream": {
        "summary": "Stream each sound as soon as it is generated",
        "value": {"source": "pronunciation", "stream": True},
    },
    "start": {
        "summary": "Generate at most three sounds",
        "value": {"source": "photograph", "max_new_tokens": 3},
    },
    "markup": {
        "summary": "Pronounce the words of a document, and keep its tags at the sounds",
        "value": {"source": ["<b>attention</b>", "photo<b>graph</b>"], "markup": "xml"},
    },
    SIMPLE: {"value": {"source": "Hello"}},
}


class DecodeRequest(Searching):
    source: Source
    num_hypotheses: int = Field(
        default=1,
        ge=1,
        le=64,
        description="How many hypotheses to return: without a temperature, the best beams, at most"
        " beam_size of them; with a temperature, samples.",
    )
    top_log_probs: int = Field(
        default=0,
        ge=0,
        le=20,
        description="How many of the most probable tokens to return with each generated token.",
    )
    attention: AttentionSelection | None = Field(
        default=None,
        description="Which attention weights to return with each hypothesis. {} selects all"
        " cross-attention; null returns none.",
    )
    ablate: Ablate = Field(default=[])
    partial: Partial = False
    stream: bool = Field(
        default=False,
        description="Send the answer as server-sent events while it is generated.",
    )
    source_final: bool = Field(
        default=True,
        description="false: the source will grow. Each hypothesis then says how much of it is"
        " committed: what is aligned to the source before its last `hold` tokens. Send what is"
        " committed as target_prefix with the longer source, and the whole source with true."
        " Needs a model whose bundle names its alignment, and no split, markup, replace_unknown or"
        " required.",
    )
    hold: int | None = Field(
        default=None,
        ge=1,
        description="With source_final false: how many of the source's last tokens, special ones"
        " left out, may still change their meaning. More give a better target later. null: 4.",
    )
    words: bool = Field(
        default=False,
        description="Return the words of each target with their log-probs and entropies and, if the"
        " model's bundle names its alignment, with the words of the source that they are of.",
    )
    source_share: bool = Field(
        default=False,
        description="With words: say how much each word depends on the source at all. Every"
        " hypothesis is scored twice for it, given its source and given it with all tokens"
        " replaced. Needs a model that can score targets.",
    )
    split: Split = Field(
        default="none",
        description="sentences: split each source by lines and sentence marks, decode every"
        " sentence by itself, and put the targets into the places of the sentences, so that white"
        " space stays as it is. All options apply to each sentence; sentences count as sources"
        " where those are limited. A sentence that is too long for the model is split further,"
        " after the last clause mark that fits, else at the last space. Sentences without letters"
        " and digits stay as they are. Source must be a text or a list of texts.",
    )
    markup: Kind | None = Field(
        default=None,
        description="Read each source as HTML or XML. A text with the tags inside is decoded"
        " without them, and the model's alignment puts each tag around the words that belong to its"
        " own: the answer has the same tags and is well-formed. Left as they are: elements with"
        ' translate="no" or class="notranslate"; code, kbd, samp, var, pre, script, style, svg,'
        " math and textarea; comments; placeholders such as {name}, %s and %(name)d."
        " The attributes alt, aria-label, placeholder and title of HTML are decoded too. Needs a"
        " model with an alignment, and sources that are texts. null: sources have no markup.",
    )
    replace_unknown: bool = Field(
        default=False,
        description="In `text`, put the source word that is aligned to it in the place of each"
        " token of unknown words; where the target has more of that word, only the source token."
        " Tokens and log_probs stay as they are. Needs a model with an alignment.",
    )


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
        answers = await finish(call, model, entries, answers)
    if complete:
        await complete(answers)
    return Computed(lambda: write(answers), answers, faults.size)


async def finish(
    call: Call, model: Model, entries: Sequence[Entry], answers: Sequence[Answer]
) -> list[Answer]:
    """Return the answers, with new ones in the place of those that were cut: up to the model's last
    position. An answer stays cut if this is not enough, or if there is no room or time for it.

    Not every source is decoded that far at first: the scheduler and the budget of answers would
    reserve for all of them what only few need.
    """
    most = model.manifest.target_positions
    longer = {
        i: entry._replace(search=replace(entry.search, max_new_tokens=most))
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


def check_growing(body: DecodeRequest, model: Model, faults: Faults) -> None:
    """Raise NotFound if the source will grow and the model cannot align. Add a fault for each field
    that contradicts source_final."""
    if not body.source_final:
        check_aligns(model)
        whole = {
            "split": body.split != "none",
            "markup": body.markup,
            "replace_unknown": body.replace_unknown,
        }
        for name in [each for each, given in whole.items() if given]:
            detail = "needs a whole source: omit it, or set source_final to true"
            faults.add(Invalid.at(f"/{name}", detail))
        if body.required:
            detail = "needs a whole source: omit it, or use glossary for words that have come"
            faults.add(Invalid.at("/required", detail))
    elif body.hold is not None:
        detail = "has no effect on a whole source: set source_final to false, or omit hold"
        faults.add(Invalid.at("/hold", detail))


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
    if body.markup or body.replace_unknown:
        check_edits(body, model, faults, apart)
    selection = read_selection(body.attention, model, faults) if body.attention else NO_ATTENTION
    search = await read_search(
        call,
        body,
        model,
        faults,
        body.num_hypotheses,
        body.top_log_probs,
        entropies=body.words,
    )
    if body.hold or not body.source_final:
        check_growing(body, model, faults)
    ablated = read_ablation(body.ablate, model, faults) if body.ablate else ()
    call.check_line(hypotheses_nbytes(search, count_texts(body.source)))
    languages = read_languages(body, model, body.source, faults)
    source = TextField(pointer, body.source, languages.source, markup=body.markup, apart=apart)
    sources = await read_sources(call, source, body.split, faults)
    searches = await read_searches(call, body, model, search, sources.tokens, faults)
    faults.raise_all(count_texts(body.source))
    every = not body.source_final or body.replace_unknown or (body.words and can_align(model))
    aligns = [True] * len(sources.tokens) if every else sources.marked
    limit, size = call.settings.max_answer_bytes, (search, body.attention, selection)
    nbytes = check_decoded(limit, model, *size, sources.tokens, any(aligns))
    if body.words:
        nbytes += check_words(body.source_share, call.settings, search, sources.tokens)
    await call.hold(nbytes)
    entries = [
        Entry(
            np.array(source.ids),
            each,
            selection=selection,
            aligns=aligned or selection.alignment == "model",
            streams=body.stream,
            language=languages.target_ids,
            ablated=ablated,
        )
        for source, each, aligned in zip(sources.tokens, searches, aligns, strict=True)
    ]

    def write(answers: Sequence[Answer]) -> Document:
        asked = zip(entries, sources.tokens, answers, strict=True)
        write_valid = partial(write_answer, body, model, sources, faults)
        return write_partial(call, faults, sources.results, asked, write_valid)

    occlude = partial(add_occluded, call, model, entries, sources, faults)
    complete = occlude if body.source_share else None
    return Prepared(model, entries, sources, write, faults, complete)


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


def check_edits(body: DecodeRequest, model: Model, faults: Faults, apart: bool) -> None:
    """Raise NotFound if whole targets will be edited and the model cannot align. Add a fault for
    each field that needs the text as the model wrote it. `apart`: parts of markup are decoded by
    themselves."""
    if body.replace_unknown or (body.markup and not apart):
        check_aligns(model)
    if body.source_share:
        check_scores(model)
        if not body.words:
            detail = "is a number of words: set words to true, or omit source_share"
            faults.add(Invalid.at("/source_share", detail))
    edits = [name for name in ("markup", "replace_unknown") if getattr(body, name)]
    for name in edits:
        if body.stream:
            detail = f"needs whole targets, of which a stream sends parts: omit stream or {name}"
            faults.add(Invalid.at(f"/{name}", detail))
        if body.words:
            detail = f"counts characters of targets, which {name} changes: omit words or {name}"
            faults.add(Invalid.at("/words", detail))
