"""POST /v1/attribution."""

from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np
from pydantic import Field
from starlette.responses import Response

from service.api.answering.attributed import write_attribution
from service.api.answering.examples import SIMPLE, Examples
from service.api.answering.respond import Computed, negotiate_format, respond, write_partial
from service.api.answering.serialize import read_target
from service.api.reading.answer_size import check_attribution, check_rows
from service.api.reading.call import Call
from service.api.reading.faults import Faults
from service.api.reading.field_types import Partial, SourceField, TextsOrIdLists
from service.api.reading.requests import Searching
from service.api.reading.search import read_search, read_searches, refuse_search
from service.api.reading.selection import check_gates, check_scores, layers_of
from service.api.reading.texts import TextField, count_texts, read_languages, read_pairs
from service.arrays import IntArray
from service.attention import Head
from service.errors import Invalid
from service.formats.json import Document
from service.formats.writers import WRITERS
from service.occlusion import Of, Pair, Unit, occlude, parts_of
from service.search.options import SearchOptions
from service.serving.model import Model
from service.text.tokenizer import Tokenizer
from service.text.tokens import Tokens
from service.wire import Answer, Entry

FORMATS = [each for each in WRITERS if each != "text/html"]

EXAMPLES: Examples = {
    "decoded": {
        "summary": "Which letters each sound depends on",
        "value": {"source": "thought", "decimals": 2},
    },
    "contrast": {
        "summary": "Which letters speak for one pronunciation, and not for another",
        "value": {"source": "read", "target": "R EH1 D", "contrast": "R IY1 D", "decimals": 2},
    },
    "heads": {
        "summary": "What each attention head is worth for an answer",
        "value": {"source": "thought", "of": "heads", "decimals": 2},
    },
    SIMPLE: {"value": {"source": "Hello"}},
}


class AttributionRequest(Searching):
    source: SourceField
    target: TextsOrIdLists | None = Field(
        default=None,
        description="Targets to explain, one for each source. An end-of-sequence token is added to"
        " texts; ids are used unchanged. null: decode the sources, with the search options of this"
        " request.",
    )
    contrast: TextsOrIdLists | None = Field(
        default=None,
        description="Foils: other targets, one for each source. The answer then also says what"
        " speaks for each target and not for its foil; nothing does if the model decodes the foil.",
    )
    of: Of = Field(
        default="source",
        description="source: replace parts of the source. heads: switch off each attention head in"
        " turn, and say what the whole target loses; needs a model whose bundle has gated graphs,"
        " and neither contrast nor unit.",
    )
    unit: Unit = Field(
        default="token",
        description="What is replaced at a time: each token of the source, or each word: what white"
        " space separates or, in scripts without spaces between words, a token. Special tokens are"
        " never replaced.",
    )
    decimals: int | None = Field(
        default=None,
        ge=0,
        le=9,
        description="Decimals to round `data` to, for a shorter answer. null: no rounding.",
    )
    partial: Partial = False


async def attribution(body: AttributionRequest, call: Call) -> Response:
    """Replace each token or word of the source in turn by the unknown token, and return how much
    log-prob each token of the target loses (occlusion). The target is the one that you send or, if
    you send none, the one that the model decodes.

    With `of` heads, switch off each attention head instead.

    The source share says how much of a token's probability depends on the source at all. Near 0 the
    model speaks without reading, as when it hallucinates.

    The Accept header selects the format:

    - application/json, the default.
    - application/npz (read by numpy.load) and application/safetensors: an array for each block,
      `{result}.0.target` and `{result}.0.contrast`; with `of` heads `{result}.0.encoder`,
      `{result}.0.decoder` and `{result}.0.cross`. `meta` is the JSON answer without `data`.
    - image/svg+xml and image/png: heatmaps, for a single source.

    With `partial` the answer is always JSON.
    """
    media_type = negotiate_format(call, count_texts(body.source), body.partial, FORMATS)
    return await respond(call, await run_attribution(body, call), media_type)


async def run_attribution(body: AttributionRequest, call: Call) -> Computed:
    """Compute the attribution of each source. Raise the errors of the endpoint."""
    model = call.use_model(body.model)
    check_scores(model)
    faults = Faults(body.partial)
    heads = read_heads(body, model, faults)
    search = None
    if body.target is None:
        search = await read_search(call, body, model, faults)
    else:
        refuse_search(body, faults)
    languages = read_languages(body, model, body.source, faults)
    asked = await read_asked(call, model, body, languages.source, faults)
    searches: list[SearchOptions] = []
    if search:
        searches = await read_searches(call, body, model, search, asked.sources, faults)
        faults.raise_all(count_texts(body.source))
    size = sum(map(len, asked.sources))
    pairs = await call.compute_reading(lambda: make_pairs(asked, body.unit, heads), size)
    if body.contrast is not None:
        pairs = refuse_same(pairs, TextField("/contrast", body.contrast, model.target), faults)
        faults.raise_all(count_texts(body.source))
    check = partial(check_rows, call.settings.max_rows, [*pairs.values()], body.unit)
    await call.compute_reading(check, size)
    most = search.max_new_tokens + len(search.target_prefix) if search else 0
    await call.hold(check_attribution(call.settings.max_answer_bytes, [*pairs.values()], most))
    language, decoded = languages.target_ids, list[Answer]()
    if search:
        pairs, decoded = await decode_targets(call, model, searches, pairs, language, faults)
    scored = await score_rows(call, model, pairs, language, faults)
    answers = [*decoded, *scored]
    call.note(answers)
    call.record.sources, call.record.source_tokens = len(asked.sources), size  # not their rows

    def write() -> Document:
        found = iter(scored)
        each = [(pair, [*islice(found, pair.rows * len(pair.targets))]) for pair in pairs.values()]
        return write_partial(call, faults, [*pairs], each, write_valid)

    def write_valid(answered: Sequence[tuple[Pair, Sequence[Answer]]]) -> Document:
        return write_attribution(model, body.of, body.decimals, answered)

    return Computed(write, answers, faults.size)


def read_heads(body: AttributionRequest, model: Model, faults: Faults) -> list[Head]:
    """Return all heads if they are to be switched off. Raise NotFound if the model has no gates.
    Add a fault for each field that then has no effect."""
    if body.of == "source":
        return []
    check_gates(model, "switch off heads", "of")
    for name in sorted(body.model_fields_set & {"contrast", "unit"}):
        detail = f"has no effect with of heads: omit {name}, or set of to source"
        faults.add(Invalid.at(f"/{name}", detail))
    config = model.manifest.config
    return [
        Head(kind, layer, head)
        for kind, layers in layers_of(config).items()
        for layer in range(layers)
        for head in range(config.num_heads)
    ]


class AskedTexts(NamedTuple):
    """The valid sources of a request and, unless they are to be decoded, their targets; their foils
    if they have some; and the indices of their results."""

    sources: list[Tokens]
    targets: Sequence[Tokens | None]
    foils: Sequence[Tokens | None]
    results: list[int]


async def read_asked(
    call: Call, model: Model, body: AttributionRequest, tokenizer: Tokenizer, faults: Faults
) -> AskedTexts:
    """Return the tokens of all texts. Raise the faults of the request."""
    values = {"target": body.target, "contrast": body.contrast}
    given = {name: value for name, value in values.items() if value is not None}
    fields = [TextField(f"/{name}", value, model.target) for name, value in given.items()]
    source = TextField("/source", body.source, tokenizer)
    sources, *targets = await read_pairs(call, source, fields, faults)
    faults.raise_all(count_texts(body.source))
    read = dict[str, Sequence[Tokens | None]](zip(given, targets, strict=True))
    nothing = [None] * len(sources)
    results = faults.valid(count_texts(body.source))
    return AskedTexts(sources, read.get("target", nothing), read.get("contrast", nothing), results)


def make_pairs(asked: AskedTexts, unit: Unit, heads: Sequence[Head]) -> dict[int, Pair]:
    """Return a pair for each source, by the index of its result."""
    each = zip(asked.results, asked.sources, asked.targets, asked.foils, strict=True)
    return {
        result: Pair(source, parts_of(source, unit), target or Tokens.of("", []), 0, foil, heads)
        for result, source, target, foil in each
    }


def refuse_same(pairs: dict[int, Pair], contrast: TextField, faults: Faults) -> dict[int, Pair]:
    """Return the pairs whose foil is not their target itself. Add a fault for each other one."""
    same = [
        result for result, pair in pairs.items() if pair.foil and pair.foil.ids == pair.target.ids
    ]
    for result in same:
        error = Invalid.at(contrast.place(result), "is the target itself: send another one")
        faults.add(error, result)
    return {result: pair for result, pair in pairs.items() if result not in same}


def make_rows(
    pairs: dict[int, Pair], replacement: int, language: tuple[int, ...]
) -> tuple[list[Entry], list[int]]:
    """Return the entries of all rows, for each pair with its target and then with its foil, and the
    index of the result to which each of them belongs."""
    entries: list[Entry] = []
    results: list[int] = []
    for result, pair in pairs.items():
        rows = occluded_rows(pair, replacement)
        for ids in [target.ids for target in pair.targets]:
            entries += [
                Entry(row, target_ids=ids, scores=True, language=language, ablated=ablated)
                for row, ablated in rows
            ]
            results += [result] * len(rows)
    return entries, results


def occluded_rows(pair: Pair, replacement: int) -> list[tuple[IntArray, tuple[Head, ...]]]:
    """Return the ids of each row of a pair, and the heads that it does without."""
    if not pair.heads:
        return [(row, ()) for row in occlude(pair.source, pair.parts, replacement)]
    ids = np.array(pair.source.ids)
    return [(ids, ()), *((ids, (head,)) for head in pair.heads)]


async def decode_targets(
    call: Call,
    model: Model,
    searches: Sequence[SearchOptions],
    pairs: dict[int, Pair],
    language: tuple[int, ...],
    faults: Faults,
) -> tuple[dict[int, Pair], list[Answer]]:
    """Return the pairs with targets, without those whose pass has failed, and all answers."""
    entries = [
        Entry(np.array(pair.source.ids), search, language=language)
        for pair, search in zip(pairs.values(), searches, strict=True)
    ]
    answers = await call.submit_and_wait(model, entries, faults, [*pairs])
    decoded = {
        result: read_target(model, entry, answer.hypotheses[0])
        for result, entry, answer in zip(pairs, entries, answers, strict=True)
        if answer.hypotheses
    }
    prefix = max((len(each.target_prefix) for each in searches), default=0)  # the same for all
    found = {
        result: pairs[result]._replace(target=target, prefix=prefix)
        for result, target in decoded.items()
    }
    return found, answers


async def score_rows(
    call: Call, model: Model, pairs: dict[int, Pair], language: tuple[int, ...], faults: Faults
) -> list[Answer]:
    """Return the answers to all rows, in the order of `make_rows`."""
    size = sum(pair.rows * len(pair.source) for pair in pairs.values())
    make = partial(make_rows, pairs, model.replacement, language)
    entries, results = await call.compute_reading(make, size)
    return await call.submit_in_parts(model, entries, faults, results)
