"""Read the phrases that targets must contain: those of the request, and those of its glossary."""

from collections.abc import Mapping, Sequence, Set
from itertools import chain, product

from service.api.reading.faults import Faults
from service.api.reading.requests import Searching
from service.api.reading.validation_errors import segment
from service.errors import MOST_FAULTS, Invalid, TooLarge, shorten
from service.search.options import SearchOptions
from service.search.phrases import Phrase, Requirement
from service.search.sequences import Sequences
from service.search.ways import Ways
from service.serving.model import Model
from service.text.glossary import Glossary, units_of
from service.text.tokens import Tokens

PhraseTexts = str | Sequence[str]

BEAMS = 4  # where the model's own search has fewer: a single one would find only clumsy places
MOST_ITEMS = 32  # of a source
MOST_PHRASES = 2048  # of the entries that all sources have: a second to tokenize, or less
NOT_SAMPLED = "is found by beam search, not by sampling: omit temperature, or {name}"
ONE_BEAM = "is 1 but {name} needs several beams: give at least 2, or omit beam_size"


def phrases_size(required: Sequence[PhraseTexts], ways: Ways) -> int:
    """Return how many characters of phrases `read_required` tokenizes."""
    return sum(ways.size(each) for asked in required for each in alternatives(asked))


def glossary_size(glossary: Mapping[str, PhraseTexts], sources: Sequence[Tokens]) -> int:
    """Return how many characters `read_glossary` reads."""
    entries = sum(len(entry) + sum(map(len, asked)) for entry, asked in glossary.items())
    return entries + sum(len(source.text) for source in sources)


def check_required(body: Searching, faults: Faults) -> None:
    """Add a fault for each option with which phrases cannot be required."""
    for name in ("required", "glossary"):
        if not getattr(body, name):
            continue
        if body.temperature:
            faults.add(Invalid.at(f"/{name}", NOT_SAMPLED.format(name=name)))
        elif body.beam_size == 1:
            faults.add(Invalid.at("/beam_size", ONE_BEAM.format(name=name)))


def read_required(
    required: Sequence[PhraseTexts], model: Model, search: SearchOptions, faults: Faults
) -> tuple[Requirement, ...]:
    """Return the items of the request. Add a fault for each phrase that no target can contain."""
    items: list[Requirement] = []
    banned = banned_by(search)
    for i, asked in enumerate(required):
        before = len(items)
        with faults.collect():
            items.append(read_item(asked, f"/required/{i}", model, search, banned))
        if len(items) == before and i >= MOST_FAULTS:
            break
    with faults.collect():
        check_one_end(items, "/required", model)
    return tuple(items)


def read_glossary(
    body: Searching, model: Model, search: SearchOptions, sources: Sequence[Tokens], faults: Faults
) -> list[SearchOptions]:
    """Return the search of each source: `search` if the source has no entry of the glossary, else
    one that also requires the targets of its entries.

    Add a fault for each target of such an entry that no target can contain.
    """
    for entry in body.glossary:
        if not units_of(entry):
            faults.add(Invalid.at(f"/glossary{segment(entry)}", "has no word: omit it"))
    glossary = Glossary(body.glossary)
    found = [tuple(glossary.find(source.text)) for source in sources]
    # One object for all sources with the same entries: they share its `Rules`
    searches: dict[tuple[str, ...], SearchOptions] = {(): search}
    different = [each for each in dict.fromkeys(found) if each]
    for entries in different:
        if len(entries) > MOST_ITEMS:  # too many to tokenize
            faults.add(too_many(len(entries)))
    fitting = [each for each in different if len(each) <= MOST_ITEMS]
    items = read_entries(body, {*chain.from_iterable(fitting)}, model, search, faults)
    for entries in fitting:
        with faults.collect():
            wanted = [items[each] for each in entries if each in items]
            searches[entries] = require(body, search, wanted)
            check_one_end(searches[entries].required, "/glossary", model)
    return [searches.get(entries, search) for entries in found]


def read_entries(
    body: Searching, wanted: Set[str], model: Model, search: SearchOptions, faults: Faults
) -> dict[str, Requirement]:
    """Return the items of these entries of the glossary. Add a fault for each that no target can
    contain, up to MOST_FAULTS, or one if they have more than MOST_PHRASES."""
    entries = {each: asked for each, asked in body.glossary.items() if each in wanted}
    count = sum(len(alternatives(asked)) for asked in entries.values())
    if count > MOST_PHRASES:
        detail = f"asks for {count} phrases in all sources and the limit is {MOST_PHRASES}"
        faults.add(TooLarge.at("/glossary", f"{detail}: send fewer sources at a time"))
        return {}
    items: dict[str, Requirement] = {}
    banned = banned_by(search)
    for tried, (entry, asked) in enumerate(entries.items()):
        with faults.collect():
            pointer = f"/glossary{segment(entry)}"
            items[entry] = read_item(asked, pointer, model, search, banned)
        if tried - len(items) + 1 == MOST_FAULTS:
            break
    return items


def require(body: Searching, search: SearchOptions, items: Sequence[Requirement]) -> SearchOptions:
    """Return a search that requires these items, too. Raise TooLarge for more than MOST_ITEMS."""
    required = tuple(dict.fromkeys([*search.required, *items]))
    if len(required) > MOST_ITEMS:
        raise too_many(len(required))
    least = BEAMS if body.beam_size is None else 1
    return search._replace(required=required, beam_size=max(search.beam_size, least))


def check_one_end(items: Sequence[Requirement], pointer: str, model: Model) -> None:
    """Raise Invalid if a target would have to end in two ways to meet all items."""
    eos_ids = frozenset(model.manifest.eos_ids)
    first, common = "", set[tuple[int, ...]]()  # ends that meet all items so far
    for asked, phrases in items:
        ways = {phrase.ids for phrase in phrases if phrase.ids[-1] in eos_ids}
        if len(ways) < len(phrases):
            continue  # it may also be met before the end
        text = asked if isinstance(asked, str) else asked[0]
        first = first or text
        common = common_ends(common, ways) if common else ways
        if not common:
            named = " and ".join(repr(shorten(each)) for each in (first, text))
            detail = f"asks for {named}, which both can only end a target: omit one of them"
            raise Invalid.at(pointer, detail)


def common_ends(some: Set[tuple[int, ...]], others: Set[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Return the ends of which each holds one of `some` and one of `others`."""
    pairs = (sorted(pair, key=len) for pair in product(some, others))
    return {longer for shorter, longer in pairs if longer[-len(shorter) :] == shorter}


def too_many(count: int) -> TooLarge:
    return TooLarge.at(
        "/glossary",
        f"and required ask for {count} phrases in one source and the limit is {MOST_ITEMS}: send"
        ' shorter sources, or "split": "sentences"',
    )


def alternatives(asked: PhraseTexts) -> Sequence[str]:
    return [asked] if isinstance(asked, str) else asked


def banned_by(search: SearchOptions) -> Sequences:
    """Return what no phrase can contain."""
    return Sequences([*((i,) for i in search.suppress_tokens), *search.suppress_sequences])


def read_item(
    asked: PhraseTexts, pointer: str, model: Model, search: SearchOptions, banned: Sequences
) -> Requirement:
    """Return an item with the tokens of all its alternatives. Raise Invalid."""
    if isinstance(asked, str):
        return Requirement(asked, tuple(read_phrase(asked, pointer, model, search, banned)))
    found = [
        phrase
        for i, text in enumerate(asked)
        for phrase in read_phrase(text, f"{pointer}/{i}", model, search, banned)
    ]
    return Requirement(tuple(asked), tuple(found))


def read_phrase(
    text: str, pointer: str, model: Model, search: SearchOptions, banned: Sequences
) -> list[Phrase]:
    """Return the ways to write a phrase as tokens. Raise Invalid if no target can contain it."""
    target, ends = model.target, frozenset(model.manifest.eos_ids)
    try:
        written = model.ways.of(text, pointer)
    except TooLarge as error:
        raise Invalid(error.detail, error.faults) from error
    ways = [
        phrase
        for phrase in written
        if ends.isdisjoint(phrase.ids[:-1]) and not banned.find(phrase.ids)
    ]
    if not ways:
        alone = written[0].ids
        part, why = banned.find(alone), "suppress_tokens or the model itself excludes"
        if not part:
            part, why = [next(i for i in alone if i in ends)], "ends targets of this model"
        named = "token " if len(part) == 1 else "tokens "
        named += ", ".join(f"{target.name(i)} ({i})" for i in part)
        raise Invalid.at(pointer, f"needs the {named}, which {why}: give another phrase")
    shortest = min(len(phrase.ids) for phrase in ways)
    room = len(search.target_prefix) + search.max_new_tokens
    if shortest > room:
        raise Invalid.at(
            pointer,
            f"takes {shortest} tokens and targets of this request have at most {room}: raise"
            " max_new_tokens, or shorten it",
        )
    return ways
