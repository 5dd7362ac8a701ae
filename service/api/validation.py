"""What a request says of the search and of attention, as options that agree with each other and
with the model."""

import secrets
from collections.abc import Iterable

from service.api import requests
from service.api.field_types import Indices
from service.attention import NO_ATTENTION, AttentionKind, Selection
from service.bundle import GraphName, Manifest
from service.engine.model import Model
from service.errors import Fault, Invalid, NotFound, TooLarge
from service.search.options import SearchOptions
from service.tokenizer import Tokenizer

THRESHOLD = 0.2  # of an alignment
ATTENTION_GRAPHS: dict[AttentionKind, GraphName] = {
    "encoder": "encoder_attention",
    "decoder": "attention",
    "cross": "attention",
}
OF_SAMPLES = ("top_k", "top_p", "seed")  # mean nothing without a temperature
BANS = ("min_new_tokens", "no_repeat_ngram_size", "suppress_tokens", "stop")


def search_options(
    body: requests.Searching,
    manifest: Manifest,
    target: Tokenizer,
    num_hypotheses: int = 1,
    top_log_probs: int = 0,
) -> SearchOptions:
    """Raises Invalid naming the option that contradicts another one or the model."""
    check_samples(body, num_hypotheses)
    prefix = read_prefix(body.target_prefix, target, manifest.eos_id)
    max_new_tokens = count_new_tokens(body.max_new_tokens, len(prefix), manifest)
    if body.min_new_tokens > max_new_tokens:
        detail = f"{body.min_new_tokens} is more than max_new_tokens, {max_new_tokens}"
        raise Invalid.at("/min_new_tokens", detail)
    vocabulary = manifest.config.target_vocab_size
    check_ids(enumerate(body.suppress_tokens), "/suppress_tokens", vocabulary)
    if len(set(body.suppress_tokens)) == vocabulary:
        raise Invalid.at("/suppress_tokens", "leaves nothing to generate")
    stops = [body.stop] if isinstance(body.stop, str) else body.stop
    numbered = ((i, stop) for i, stop in enumerate(stops) if isinstance(stop, int))
    check_ids(numbered, "/stop", vocabulary)
    return SearchOptions(
        max_new_tokens=max_new_tokens,
        min_new_tokens=body.min_new_tokens,
        beam_size=body.beam_size,
        num_hypotheses=num_hypotheses,
        length_penalty=body.length_penalty,
        early_stopping=body.early_stopping,
        repetition_penalty=body.repetition_penalty,
        no_repeat_ngram_size=body.no_repeat_ngram_size,
        suppress_tokens=tuple(sorted(suppressed(body, manifest))),
        allowed_targets=read_allowed(body, prefix, max_new_tokens, target),
        temperature=body.temperature,
        top_k=body.top_k or 0,
        top_p=body.top_p or 1.0,
        seed=secrets.randbits(63) if body.seed is None else body.seed,
        target_prefix=tuple(prefix),
        stop=tuple(stop for stop in stops if isinstance(stop, str)),
        stop_ids=frozenset(stop for stop in stops if isinstance(stop, int)),
        top_log_probs=min(top_log_probs, vocabulary),
    )


def check_samples(body: requests.Searching, num_hypotheses: int) -> None:
    if body.temperature == 0:
        if num_hypotheses > body.beam_size:
            detail = f"{num_hypotheses} is more than the {body.beam_size} of beam_size"
            raise Invalid.at("/num_hypotheses", f"{detail}; or sample, with a temperature")
        for name in OF_SAMPLES:
            if getattr(body, name) is not None:
                raise Invalid.at(f"/{name}", "means nothing unless temperature is above 0")
    elif body.beam_size > 1:
        detail = "samples, and beam_size searches: give a temperature, or a beam_size above 1"
        raise Invalid.at("/temperature", detail)


def count_new_tokens(wanted: int | None, prefix: int, manifest: Manifest) -> int:
    """Raises Invalid if that is more than the decoder has positions for."""
    positions = manifest.limits.max_target_length + 1 - len(manifest.decoder_start_ids)
    limit = positions - prefix
    if limit < 1:
        detail = f"has {prefix} tokens; this model can generate {positions}, of them one at least"
        raise Invalid.at("/target_prefix", detail)
    if wanted is not None and wanted > limit:
        after = " after target_prefix" if prefix else ""
        detail = f"{wanted} is more than this model can generate{after}: give 1 to {limit}"
        raise Invalid.at("/max_new_tokens", detail)
    return wanted or min(limit, manifest.decoding.max_new_tokens)


def check_ids(ids: Iterable[tuple[int, int]], pointer: str, vocabulary: int) -> None:
    """With their places. The first that does not exist refuses them all."""
    for place, token_id in ids:
        if not 0 <= token_id < vocabulary:
            detail = f"{token_id} is not allowed: ids are 0 to {vocabulary - 1}"
            raise Invalid.at(f"{pointer}/{place}", detail)


def suppressed(body: requests.Searching, manifest: Manifest) -> set[int]:
    """A draw is no padding and no start. A search may hold them where its beams reach down to
    the unlikely."""
    ids = {*body.suppress_tokens}
    if body.temperature:
        unknown = [] if manifest.unknown_id is None else [manifest.unknown_id]
        ids |= {manifest.pad_id, *manifest.decoder_start_ids, *unknown} - {manifest.eos_id}
    return ids


def read_prefix(prefix: str | list[int] | None, target: Tokenizer, eos_id: int) -> list[int]:
    if not prefix:
        return []
    try:
        if isinstance(prefix, str):
            return target.encode(prefix, "/target_prefix").ids[:-1]  # the eos after it
        ids = target.read_ids(prefix, "/target_prefix").ids
    except TooLarge as error:  # it leaves nothing to generate, which is no question of size
        raise Invalid(error.detail, error.faults) from error
    if eos_id in ids:
        raise Invalid.at(f"/target_prefix/{ids.index(eos_id)}", "ends the target: nothing follows")
    return ids


def read_allowed(
    body: requests.Searching, prefix: list[int], max_new_tokens: int, target: Tokenizer
) -> tuple[tuple[int, ...], ...]:
    """What may follow the prefix, each with its eos."""
    if body.allowed_targets is None:
        return ()
    for name in BANS:
        if getattr(body, name):
            raise Invalid.at(f"/{name}", "cannot be given with allowed_targets, which it may break")
    allowed: dict[tuple[int, ...], None] = {}
    for i, text in enumerate(body.allowed_targets):
        ids = target.encode(text, f"/allowed_targets/{i}").ids
        if ids[: len(prefix)] != prefix:
            continue
        if len(ids) - len(prefix) > max_new_tokens:
            detail = f"takes {len(ids) - len(prefix)} tokens; max_new_tokens is {max_new_tokens}"
            raise Invalid.at(f"/allowed_targets/{i}", detail)
        allowed[tuple(ids[len(prefix) :])] = None
    if not allowed:
        raise Invalid.at("/allowed_targets", "has none that begins with target_prefix")
    return tuple(allowed)


def read_selection(body: requests.AttentionSelection | None, model: Model) -> Selection:
    """Return the weights that `body` asks for; none if it is absent.

    Raises NotFound if the bundle lacks a graph it needs, and Invalid naming the range of an index,
    or the option that contradicts another.
    """
    if body is None:
        return NO_ATTENTION
    for kind in body.kinds:
        if ATTENTION_GRAPHS[kind] not in model.engine.opened.graphs:
            raise NotFound("not_supported", f"model {model.name} shows no {kind} attention")
    check_selection(body)
    config = model.engine.bundle.manifest.config
    depth: dict[AttentionKind, int] = {
        "encoder": config.num_encoder_layers,
        "decoder": config.num_decoder_layers,
        "cross": config.num_decoder_layers,
    }
    layers: dict[AttentionKind, list[int]] = {
        kind: resolve(body.layers, depth[kind], f"{kind} layer", "layers") for kind in body.kinds
    }
    return Selection(
        layers=layers,
        heads=resolve(body.heads, config.num_heads, "head", "heads"),
        reduce_heads=body.reduce_heads,
        reduce_layers=body.reduce_layers,
        rows=(body.rows[0], body.rows[1]) if body.rows else None,
        alignment=body.alignment,
        threshold=THRESHOLD if body.threshold is None else body.threshold,
        decimals=body.decimals,
    )


def check_selection(body: requests.AttentionSelection) -> None:
    kinds, rows = set(body.kinds), body.rows or [0, 1]
    rollout = body.reduce_layers == "rollout"
    start, stop = rows
    nothing = ((start < 0) == (stop < 0) and stop <= start) or (start < 0 and stop == 0)
    for field, wrong, detail in (
        ("kinds", len(kinds) < len(body.kinds), "names a kind twice"),
        (
            "reduce_layers",
            rollout and "cross" in kinds,
            "rollout is of self-attention: give kinds encoder or decoder, not cross",
        ),
        (
            "reduce_layers",
            rollout and body.reduce_heads == "none",
            "rollout needs reduce_heads, mean or max",
        ),
        ("alignment", body.alignment and "cross" not in kinds, "is of kind cross: add it"),
        (
            "threshold",
            body.threshold is not None and body.alignment != "threshold",
            "means nothing unless alignment is threshold",
        ),
        ("rows", body.rows and kinds == {"encoder"}, "are steps of decoder and cross"),
        ("rows", nothing, f"{rows} selects no step"),
    ):
        if wrong:
            raise Invalid.at(f"/attention/{field}", detail)


def resolve(indices: Indices, size: int, what: str, field: str) -> list[int]:
    if indices == "all":
        return list(range(size))
    faults = [
        Fault(f"/attention/{field}/{i}", f"there is no {what} {index}: give {-size} to {size - 1}")
        for i, index in enumerate(indices)
        if not -size <= index < size
    ]
    if faults:
        raise Invalid.of(faults)
    resolved = [index % size for index in indices]
    if len(set(resolved)) < len(resolved):
        raise Invalid.at(f"/attention/{field}", f"names a {what} twice")
    return resolved
