"""Validate the options of a search: they must agree with each other and with the model."""

import secrets
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any

from service.api.reading.call import Call
from service.api.reading.faults import Faults
from service.api.reading.requests import LanguageRequest, Searching
from service.api.reading.required import (
    BEAMS,
    check_required,
    glossary_size,
    phrases_size,
    read_glossary,
    read_required,
)
from service.bundle.decoding import Bans, Decoding, bans_of
from service.bundle.manifest import Manifest
from service.errors import MOST_FAULTS, Fault, Invalid, TooLarge
from service.search.options import SearchOptions
from service.serving.model import Model
from service.text.tokenizer import Tokenizer
from service.text.tokens import Tokens

SAMPLING_OPTIONS = ("top_k", "top_p", "seed")
PREFERENCES = (
    *("length_penalty", "early_stopping"),
    *("repetition_penalty", "encoder_repetition_penalty"),
)
BANS = ("min_new_tokens", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size")
NOT_WITH_ALLOWED_TARGETS = (*BANS, "suppress_tokens", "stop", "required", "glossary")
# Options that read the source, and their values without effect
SOURCE_PENALTIES = {"encoder_repetition_penalty": 1, "encoder_no_repeat_ngram_size": 0}


async def read_search(
    call: Call,
    body: Searching,
    model: Model,
    faults: Faults,
    num_hypotheses: int = 1,
    top_log_probs: int = 0,
    *,
    entropies: bool = False,
) -> SearchOptions:
    """Return the options of the search that `body` describes.

    Add to `faults` each option that contradicts another one or the model; the search must then not
    be run.
    """
    size = len(body.suppress_tokens) + sum(map(len, body.allowed_targets or []))
    size += phrases_size(body.required, model.ways) if body.required else 0
    read = partial(
        read_search_options, body, model, faults, num_hypotheses, top_log_probs, entropies=entropies
    )
    return await call.compute_reading(read, size)


async def read_searches(
    call: Call,
    body: Searching,
    model: Model,
    search: SearchOptions,
    sources: Sequence[Tokens],
    faults: Faults,
) -> list[SearchOptions]:
    """Return the search of each source: `search`, and what the glossary requires of the source.
    Add the faults of the glossary."""
    if not body.glossary:
        return [search] * len(sources)
    read = partial(read_glossary, body, model, search, sources, faults)
    return await call.compute_reading(read, glossary_size(body.glossary, sources))


def read_search_options(
    body: Searching,
    model: Model,
    faults: Faults,
    num_hypotheses: int,
    top_log_probs: int,
    *,
    entropies: bool,
) -> SearchOptions:
    manifest, own = model.manifest, model.manifest.decoding
    vocabulary_size = manifest.config.target_vocab_size
    beam_size = read_beam_size(body, own)
    check_sampling(body, num_hypotheses, beam_size, faults)
    if body.required or body.glossary:
        check_required(body, faults)
    check_one_vocabulary(body, model, faults)
    prefix, max_new_tokens = read_room(body, model, faults)
    suppressed = own.suppressed
    with faults.collect():
        suppressed = read_suppressed(body, manifest)
    stop_texts, stop_ids = tuple[str, ...](), frozenset[int]()
    with faults.collect():
        stop_texts, stop_ids = read_stops(body.stop, vocabulary_size)
    search = SearchOptions(
        **inherit(body, own),
        max_new_tokens=max_new_tokens,
        beam_size=beam_size,
        num_hypotheses=num_hypotheses,
        suppress_tokens=tuple(sorted(suppressed.ids)),
        suppress_sequences=suppressed.sequences,
        renormalize=own.renormalize,
        allowed_targets=read_allowed_targets(body, prefix, max_new_tokens, model, faults),
        temperature=body.temperature,
        top_k=body.top_k or 0,
        top_p=body.top_p or 1.0,
        seed=secrets.randbits(63) if body.seed is None else body.seed,
        target_prefix=tuple(prefix),
        stop=stop_texts,
        stop_ids=stop_ids,
        top_log_probs=min(top_log_probs, vocabulary_size),
        entropies=entropies,
    )
    if not body.required:
        return search
    return search._replace(required=read_required(body.required, model, search, faults))


def read_beam_size(body: Searching, own: Decoding) -> int:
    """Return the beam size of the request or the model; to find phrases, the model's is raised."""
    if body.beam_size is not None:
        return body.beam_size
    if body.temperature:
        return 1
    return max(own.beam_size, BEAMS) if body.required else own.beam_size


def inherit(body: Searching, own: Decoding) -> dict[str, Any]:
    """Return the options of the request, and those of the model where the request sets none. It has
    none of its bans where these might forbid one of allowed_targets."""
    off = () if body.allowed_targets is None else BANS
    names = (*PREFERENCES, *BANS)
    given = {name: getattr(body, name) for name in names if getattr(body, name) is not None}
    return {name: 0 if name in off else getattr(own, name) for name in names} | given


def read_room(body: Searching, model: Model, faults: Faults) -> tuple[list[int], int]:
    """Return the ids of the target prefix, and how many tokens may follow it. Add their faults."""
    manifest = model.manifest
    prefix, room = None, manifest.target_positions
    with faults.collect():
        prefix = read_prefix(body.target_prefix, model.target, manifest.eos_ids)
    with faults.collect():
        room = read_max_new_tokens(body, len(prefix or []), manifest)
    return ([], manifest.target_positions) if prefix is None else (prefix, room)


def refuse_search(body: Searching, faults: Faults) -> None:
    """Add a fault for each search option that is sent together with targets."""
    search_fields = Searching.model_fields.keys() - LanguageRequest.model_fields.keys()
    detail = "has no effect when target is given: omit it, or omit target to decode the sources"
    for name in sorted(body.model_fields_set & search_fields):
        faults.add(Invalid.at(f"/{name}", detail))


def check_sampling(body: Searching, num_hypotheses: int, beam_size: int, faults: Faults) -> None:
    """Add a fault if the options combine sampling with beam search, and one for each option of the
    kind of search that is not used. `beam_size` may be the model's own."""
    if body.temperature:
        if beam_size > 1:
            detail = (
                f"is {body.temperature:g}: temperature (sampling) and beam_size > 1 (beam search)"
                " cannot be combined; leave one of them out"
            )
            faults.add(Invalid.at("/temperature", detail))
        return
    if num_hypotheses > beam_size:
        default = " by default" if body.required else ", the model's own"
        whose = default if body.beam_size is None else ""
        ways = "raise beam_size, or sample with temperature above 0"
        if body.required or body.glossary:  # found by beams only
            ways = "or raise beam_size"
        detail = (
            f"is {num_hypotheses} but beam_size is {beam_size}{whose}: lower num_hypotheses to at"
            f" most {beam_size}, {ways}"
        )
        faults.add(Invalid.at("/num_hypotheses", detail))
    for name in SAMPLING_OPTIONS:
        if getattr(body, name) is not None:
            detail = f"has no effect without sampling: set temperature above 0, or omit {name}"
            faults.add(Invalid.at(f"/{name}", detail))


def read_max_new_tokens(body: Searching, prefix_length: int, manifest: Manifest) -> int:
    """Return how many tokens may be generated: as many as requested, or as the model's default.

    Raise Invalid if the decoder has too few positions for them.
    """
    positions = manifest.target_positions
    limit = positions - prefix_length
    if limit < 1:
        raise Invalid.at(
            "/target_prefix",
            f"has {prefix_length} tokens but targets of this model have at most {positions}, one"
            f" of them generated: give at most {positions - 1}",
        )
    requested = body.max_new_tokens
    if requested is not None and requested > limit:
        after = " after this target_prefix" if prefix_length else ""
        detail = f"is {requested} but this model can generate at most {limit} tokens{after}"
        raise Invalid.at("/max_new_tokens", f"{detail}: give 1 to {limit}")
    max_new_tokens = requested or min(limit, manifest.decoding.max_new_tokens)
    if body.min_new_tokens is not None and body.min_new_tokens > max_new_tokens:
        other = " or raise max_new_tokens" if max_new_tokens < limit else ""
        raise Invalid.at(
            "/min_new_tokens",
            f"is {body.min_new_tokens} but at most {max_new_tokens} tokens are generated"
            f" (max_new_tokens): lower min_new_tokens{other}",
        )
    return max_new_tokens


def read_stops(
    stop: str | Sequence[str | int], vocabulary_size: int
) -> tuple[tuple[str, ...], frozenset[int]]:
    """Return the texts and the ids that end a hypothesis."""
    stops = [stop] if isinstance(stop, str) else stop
    numbered = [(i, each) for i, each in enumerate(stops) if isinstance(each, int)]
    check_token_ids(numbered, "/stop", vocabulary_size)
    texts = tuple(each for each in stops if isinstance(each, str))
    return texts, frozenset(token_id for _, token_id in numbered)


def check_token_ids(
    numbered: Iterable[tuple[int | str, int]], pointer: str, vocabulary_size: int
) -> None:
    """Raise Invalid for the ids outside the vocabulary. Each comes with its place in the list."""
    last = vocabulary_size - 1
    wrong = [each for each in numbered if not 0 <= each[1] <= last]
    faults = [
        Fault(f"{pointer}/{place}", f"is {token_id}, which is not a token id: give 0 to {last}")
        for place, token_id in wrong[:MOST_FAULTS]
    ]
    if faults:
        raise Invalid.of(faults, len(wrong) - len(faults))


def read_suppressed(body: Searching, manifest: Manifest) -> Bans:
    """Return what is never generated: of the request, and of the model itself.

    Sampling also leaves out padding, start and unknown tokens: a high temperature would draw them.
    Raise Invalid for an id outside the vocabulary, or if no id is left.
    """
    vocabulary_size = manifest.config.target_vocab_size
    numbered = (
        [(f"{i}/{j}", each) for j, each in enumerate(item)]
        if isinstance(item, list)
        else [(i, item)]
        for i, item in enumerate(body.suppress_tokens)
    )
    check_token_ids(chain.from_iterable(numbered), "/suppress_tokens", vocabulary_size)
    asked = bans_of(body.suppress_tokens) if body.suppress_tokens else Bans()
    own = manifest.decoding.suppressed
    ids = asked.ids | own.ids
    if len(ids) == vocabulary_size:
        detail = "leaves no id of the vocabulary, so nothing could be generated: omit some"
        raise Invalid.at("/suppress_tokens", detail)
    if body.temperature:
        unknown = [] if manifest.unknown_id is None else [manifest.unknown_id]
        start = manifest.languages.every_id(manifest.decoder_start)
        ids |= {manifest.pad_id, *start, *unknown} - {*manifest.eos_ids}
    return Bans(ids, (*own.sequences, *asked.sequences))


def check_one_vocabulary(body: Searching, model: Model, faults: Faults) -> None:
    """Add a fault for each option that compares a target with its source, if a model's ids mean
    something else on each side."""
    used = [
        name for name, idle in SOURCE_PENALTIES.items() if getattr(body, name) not in (None, idle)
    ]
    if not used or model.has_one_vocabulary:
        return
    for name in used:
        detail = (
            "compares the tokens of a target with those of its source, and this model has two"
            " vocabularies: omit it"
        )
        faults.add(Invalid.at(f"/{name}", detail))


def read_prefix(
    prefix: str | list[int] | None, target: Tokenizer, eos_ids: Sequence[int]
) -> list[int]:
    """Return the ids of the target prefix, an empty list without a prefix."""
    if not prefix:
        return []
    try:
        if isinstance(prefix, str):
            tokens = target.encode(prefix, "/target_prefix", known=True)
            return tokens.ids[:-1]  # without the eos at its end
        ids = target.read_ids(prefix, "/target_prefix").ids
    except TooLarge as error:
        # A prefix that leaves no room contradicts the model: always 422, as in read_max_new_tokens
        raise Invalid(error.detail, error.faults) from error
    end = next((place for place, token_id in enumerate(ids) if token_id in eos_ids), None)
    if end is not None:
        detail = f"is {ids[end]} (end of sequence), after which nothing can be generated: omit it"
        raise Invalid.at(f"/target_prefix/{end}", detail)
    return ids


def read_allowed_targets(
    body: Searching, prefix: list[int], max_new_tokens: int, model: Model, faults: Faults
) -> tuple[tuple[int, ...], ...]:
    """Return the ids that follow the prefix in each allowed target, eos included, without
    duplicates. Targets that begin otherwise are skipped."""
    if body.allowed_targets is None:
        return ()
    for name in NOT_WITH_ALLOWED_TARGETS:
        if getattr(body, name):
            detail = "may forbid some of allowed_targets, so the two cannot be combined: omit one"
            faults.add(Invalid.at(f"/{name}", detail))
    allowed: dict[tuple[int, ...], None] = {}
    refused = 0
    for i, text in enumerate(body.allowed_targets):
        generated: tuple[int, ...] | None = ()
        with faults.collect():
            pointer = f"/allowed_targets/{i}"
            generated = read_allowed(text, pointer, prefix, max_new_tokens, model)
        if generated is not None:
            allowed[generated] = None
            refused += not generated
        if refused == MOST_FAULTS:
            break
    if not allowed:
        detail = "has no target whose tokens begin with those of target_prefix: add one, or change"
        faults.add(Invalid.at("/allowed_targets", f"{detail} the prefix"))
    return tuple(allowed)


def read_allowed(
    text: str, pointer: str, prefix: list[int], max_new_tokens: int, model: Model
) -> tuple[int, ...] | None:
    """Return the ids of an allowed target after the prefix; None if it begins otherwise. Raise
    Invalid for more than max_new_tokens, and for a token that would end the target too early."""
    ids = model.target.encode(text, pointer, known=True).ids
    if ids[: len(prefix)] != prefix:
        return None
    generated = ids[len(prefix) :]
    if len(generated) > max_new_tokens:
        raise Invalid.at(
            pointer,
            f"takes {len(generated)} generated tokens but max_new_tokens is {max_new_tokens}: raise"
            " max_new_tokens or omit this target",
        )
    ends = model.manifest.eos_ids
    length = 1 + next(place for place, each in enumerate(generated) if each in ends)
    if length < len(generated) - 1:  # else only the eos is missing that `encode` has added
        name = model.target.name(generated[length - 1])
        detail = f"has the token {name} ({generated[length - 1]}), which ends targets of this model"
        raise Invalid.at(pointer, f"{detail}: omit it")
    return tuple(generated[:length])
