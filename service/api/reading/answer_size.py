"""Limit the size of an answer before any of it is computed."""

from collections import Counter
from collections.abc import Iterator, Sequence, Sized
from itertools import accumulate
from typing import NamedTuple

from service.api.reading.requests import AttentionSelection
from service.api.reading.selection import select
from service.attention import Selection
from service.bundle.manifest import Config
from service.errors import TooLarge
from service.occlusion import Pair, Unit, parts_of
from service.search.options import SearchOptions
from service.serving.model import Model
from service.settings.settings import Settings
from service.text.tokens import Tokens

# Bytes that a token takes in this process: as received from the engine, in Python, and as JSON.
TOKEN_BYTES = 128
NUMBER_BYTES = 16  # a float32 in arrays and as JSON
ALTERNATIVE_BYTES = 144  # one entry of top_log_probs
ALIGNED = Selection({"cross": [0]}, [0])  # takes as much as an alignment
WORD_BYTES = 1024  # a word with the words of the source that it is of
ROW_BYTES = 1024  # an entry with its future and answer, without their ids and log-probs
FEW_ROWS = 16  # rows of a matrix to suggest when all of them exceed the limit

SEND_LESS = "send fewer or shorter sequences"
SEND_LESS_OR_LOWER = f"{SEND_LESS}, or lower max_new_tokens"


class Lengths(NamedTuple):
    """Tokens of a source and of its target, and positions that the decoder reads for both."""

    source: int
    target: int
    decoder: int


def measure(model: Model, source: Tokens, target_length: int, prefix_length: int) -> Lengths:
    """Return the lengths of a source whose target has, or may get, `target_length` tokens after a
    target prefix."""
    manifest = model.manifest
    starts = manifest.limits.max_target_length - manifest.target_positions  # ids after the first
    return Lengths(len(source.ids), target_length, starts + prefix_length + target_length)


def longest(lengths: Sequence[Lengths]) -> Lengths:
    """Return the lengths to which all of them are padded in one array."""
    return Lengths(*map(max, zip(*lengths, strict=True)))


def total_length(sequences: Sequence[Sized], padded: bool) -> int:
    """Return the length of all sequences, each as long as the longest if they are `padded`."""
    lengths = list(map(len, sequences))
    return max(lengths) * len(lengths) if padded else sum(lengths)


def check_answer_size(limit: int, nbytes: int, advice: str) -> None:
    """Raise TooLarge if an answer of `nbytes` exceeds the limit. `advice` says how to get less."""
    if nbytes > limit:
        raise TooLarge(f"the answer could take {nbytes} bytes and the limit is {limit}: {advice}")


def hypotheses_nbytes(search: SearchOptions, sources: int) -> int:
    """Bytes of all generated tokens and their alternatives, if every hypothesis is as long as it
    may become."""
    tokens = sources * search.num_hypotheses * search.max_new_tokens
    return tokens * (TOKEN_BYTES + search.top_log_probs * ALTERNATIVE_BYTES)


def check_hypotheses(limit: int, search: SearchOptions, sources: int) -> int:
    """Return the bytes of the hypotheses. Raise TooLarge if they could exceed the limit.

    The error names options that would fit.
    """
    nbytes = hypotheses_nbytes(search, sources)
    if nbytes > limit:
        raise TooLarge.at(
            "/top_log_probs" if search.top_log_probs else "/max_new_tokens",
            f"may take {nbytes} bytes for {sources * search.num_hypotheses} hypotheses and the"
            f" limit is {limit}: {fewer_tokens(search, sources, limit)}",
        )
    return nbytes


def fewer_tokens(search: SearchOptions, sources: int, limit: int) -> str:
    """Return advice that names the most alternatives that fit, else the most tokens."""
    for count in reversed(range(search.top_log_probs)):
        if hypotheses_nbytes(search._replace(top_log_probs=count), sources) <= limit:
            return f'"top_log_probs": {count} would fit'
    longest = limit // (TOKEN_BYTES * sources * search.num_hypotheses)
    needed = max([1, search.min_new_tokens, *map(len, search.allowed_targets)])
    if longest < needed:
        return "send fewer sources, or lower num_hypotheses"
    less = f'"max_new_tokens": {longest}'
    return f'{less}, "top_log_probs": 0 would fit' if search.top_log_probs else f"{less} would fit"


def check_decoded(
    limit: int,
    model: Model,
    search: SearchOptions,
    selected: AttentionSelection | None,
    selection: Selection,
    sources: Sequence[Tokens],
    aligns: bool,
) -> int:
    """Return the bytes that the hypotheses of all sources, their attention and their alignments may
    take in this process. Raise TooLarge if they could exceed the limit."""
    tokens, weights = check_hypotheses(limit, search, len(sources)), 0
    most, prefix = search.max_new_tokens, len(search.target_prefix)
    lengths = [measure(model, source, most, prefix) for source in sources]
    advice = SEND_LESS_OR_LOWER
    if selected:
        weights = check_attention(limit, model, selected, selection, lengths, advice, search)
        weights -= tokens
    if aligns:
        weights += check_aligned(limit, model, lengths, search.num_hypotheses, advice)
    return held_nbytes(weights, tokens)


def check_words(
    shares: bool, settings: Settings, search: SearchOptions, sources: Sequence[Tokens]
) -> int:
    """Return the bytes of the words of all hypotheses, if every token may be one, and of the rows
    for their source `shares`. Raise TooLarge if words or rows could exceed the limit."""
    limit, words = settings.max_answer_bytes, search.num_hypotheses * search.max_new_tokens
    words *= len(sources)
    if (nbytes := words * WORD_BYTES) > limit:
        raise TooLarge.at(
            "/words",
            f"may take {nbytes} bytes, {WORD_BYTES} for each of {words} tokens, and the limit is"
            f" {limit}: omit it, send fewer sources, or lower max_new_tokens or num_hypotheses",
        )
    return nbytes + (check_shares(settings.max_rows, search, sources) if shares else 0)


def check_shares(limit: int, search: SearchOptions, sources: Sequence[Tokens]) -> int:
    """Return the bytes that the rows for source shares may take in this process. Raise TooLarge for
    more rows than the limit."""
    most = len(search.target_prefix) + search.max_new_tokens
    if (rows := 2 * search.num_hypotheses * len(sources)) > limit:
        raise TooLarge.at(
            "/source_share",
            f"takes {rows} rows, two for each hypothesis of each source or sentence, and the limit"
            f" is {limit}: omit it, send fewer sources, or lower num_hypotheses",
        )
    sizes = (8 * len(source) + 4 * most + ROW_BYTES for source in sources)
    return held_nbytes(0, 2 * search.num_hypotheses * sum(sizes))


def check_attention(
    limit: int,
    model: Model,
    selected: AttentionSelection,
    selection: Selection,
    lengths: Sequence[Lengths],
    advice: str,
    search: SearchOptions | None = None,
) -> int:
    """Return the bytes of the selected weights and the hypotheses of `search`. Raise TooLarge if
    they could exceed the limit. `selection` is what `selected` means for this model.

    The error names a selection that would fit, or else says `advice`.
    """
    sources = Counter(lengths)  # equal ones are computed once
    tokens = hypotheses_nbytes(search, len(lengths)) if search else 0
    targets = search.num_hypotheses if search else 1

    config = model.manifest.config

    def needed(selection: Selection) -> int:
        return attention_nbytes(config, selection, sources, targets, tokens)

    nbytes = needed(selection)
    if nbytes <= limit:
        return nbytes
    fits = (less for less in smaller(selected) if needed(select(less, config)) <= limit)
    if fitting := next(fits, None):
        advice = f'"attention": {fitting.model_dump_json(exclude_defaults=True)} would fit'
    raise TooLarge.at(
        "/attention",
        f"may take {nbytes} bytes, for the answer or for the largest forward pass, and"
        f" the limit is {limit}: {advice}",
    )


def check_aligned(
    limit: int, model: Model, lengths: Sequence[Lengths], targets: int, advice: str
) -> int:
    """Return the bytes of the alignments of sources with `targets` targets each. Raise TooLarge if
    they, or the largest forward pass, could exceed the limit. `advice` says how to get less."""
    nbytes = attention_nbytes(model.manifest.config, ALIGNED, Counter(lengths), targets, 0)
    check_answer_size(limit, nbytes, advice)
    return nbytes


def attention_nbytes(
    config: Config, selection: Selection, sources: Counter[Lengths], targets: int, other_bytes: int
) -> int:
    """Bytes of the answer, or of the largest forward pass if that is more.

    Each source has `targets` targets; the answer has `other_bytes` in addition to the weights.
    """
    weights = sum(count * selection.nbytes(*each) for each, count in sources.items())
    passes = (pass_nbytes(config, selection, each) for each in sources)
    return max([targets * weights + other_bytes, *passes])


def pass_nbytes(config: Config, selection: Selection, lengths: Lengths) -> int:
    """Bytes of the largest forward pass for a selection. It computes the weights of every layer and
    head, whichever are selected."""
    source, read = lengths.source, lengths.decoder
    encoder = config.num_encoder_layers * source**2
    decoder = config.num_decoder_layers * read * (source + read)
    passes = [encoder if kind == "encoder" else decoder for kind in selection.layers]
    return 4 * config.num_heads * max(passes, default=0)


def smaller(selected: AttentionSelection) -> Iterator[AttentionSelection]:
    """Yield ever smaller selections: reduced heads, reduced layers, then each kind alone."""
    if selected.reduce_heads == "none":
        selected = selected.model_copy(update={"reduce_heads": "mean"})
        yield selected
    if selected.reduce_layers == "none":
        selected = selected.model_copy(update={"reduce_layers": "mean"})
        yield selected
    for kind in sorted(selected.kinds):  # cross first
        if kind == "cross" or not selected.alignment:
            rows = None if kind == "encoder" else selected.rows  # which has no such rows
            alone = selected.model_copy(update={"kinds": [kind], "rows": rows})
            yield alone
            if kind != "encoder" and rows is None:
                yield alone.model_copy(update={"rows": [0, FEW_ROWS]})


def check_rows(limit: int, pairs: Sequence[Pair], unit: Unit) -> None:
    """Raise TooLarge if the pairs take more rows than the limit. The error says what would fit."""
    targets = max((len(pair.targets) for pair in pairs), default=1)
    totals = [*accumulate(targets * pair.rows for pair in pairs)]
    if totals[-1:] <= [limit]:
        return
    words = sum(2 + len(parts_of(pair.source, "word").tokens) for pair in pairs)
    fitting = sum(total <= limit for total in totals)
    if pairs[0].heads:
        detail = f"takes {totals[-1]} rows, since each source is scored with all heads and without"
        advice = f"send at most the first {fitting} at a time" if fitting else "set of to source"
        raise TooLarge.at("/source", f"{detail} each, and the limit is {limit}: {advice}")
    if unit == "token" and targets * words <= limit:
        advice = '"unit": "word" would fit'
    elif fitting:
        advice = f"send at most the first {fitting} at a time"
    else:
        advice = f"send sources of at most {limit // targets - 2} {unit}s"
    raise TooLarge.at(
        "/source",
        f"takes {totals[-1]} rows, since each source is scored as it is, without each {unit} and"
        f" without all{', with target and foil' if targets > 1 else ''}, and the limit is {limit}:"
        f" {advice}",
    )


def check_attribution(limit: int, pairs: Sequence[Pair], most: int) -> int:
    """Return the bytes that the attribution of pairs, and the rows that it is made of, may take in
    this process. A target that is to be decoded may get `most` tokens. Raise TooLarge if the answer
    could exceed the limit."""
    numbers = rows = 0
    for pair in pairs:
        lengths = [len(target) or most for target in pair.targets]
        parts = 0 if pair.heads else len(pair.parts.tokens)
        numbers += len(pair.heads) + parts * (lengths[0] + 2 * (len(lengths) - 1))
        rows += pair.rows * sum(8 * len(pair.source) + 4 * each + ROW_BYTES for each in lengths)
    advice = SEND_LESS if all(pair.target for pair in pairs) else SEND_LESS_OR_LOWER
    check_answer_size(limit, 4 * numbers, advice)
    return held_nbytes(4 * numbers, rows)


def held_nbytes(arrays: int, tokens: int = 0) -> int:
    """Bytes that an answer takes in this process: `arrays` bytes of float32, and bytes for its
    tokens."""
    return arrays // 4 * NUMBER_BYTES + tokens
