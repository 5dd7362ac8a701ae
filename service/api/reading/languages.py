"""Validate the languages of a request: the model must know them, and get those that it needs."""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import NamedTuple, get_args

from service.api.reading.faults import Faults
from service.api.reading.field_types import TextsOrIds
from service.api.reading.requests import LanguageRequest
from service.bundle.languages import Slot, fill, slots_of
from service.bundle.manifest import Manifest
from service.errors import Invalid
from service.serving.model import Model
from service.text.tokenizer import Tokenizer

AUTO = "auto"  # as a source language: to be detected
NAMED = 5  # codes that an error names
# Codes of two letters (ISO 639-1), each with its code of three letters (ISO 639-3), where that does
# not begin with the two
PAIRS = (
    "bgbul bnben bsbos csces dvdiv eoepo esspa etest fapes fofao fyfry gagle gdgla gngrn hthat"
    " idind igibo jajpn jvjav kkkaz kmkhm knkan kykir lbltz lolao ltlit lvlav mgmlg mgplt mimri"
    " mlmal mnkhk mrmar mszsm mtmlt nbnob nenpi omgaz plpol pspbt ptpor scsrd sdsnd sqals"
    " stsot svswe tktuk tltgl trtur tttat uguig yiydd"
)
SAME_LANGUAGE = frozenset(PAIRS.split())
# Codes of the languages that models have in place of a group: of standard Arabic for Arabic
INDIVIDUAL = {"arb": "ar", "azj": "az", "lvs": "lv", "no": "nb", "swh": "sw"}


class RequestLanguages(NamedTuple):
    """The effects of the languages of a request."""

    source: Tokenizer  # puts their ids around each source
    target_ids: tuple[int, ...]  # those that the decoder starts with


def choose_languages(
    body: LanguageRequest, model: Model, sources: TextsOrIds, faults: Faults, decodes: bool
) -> RequestLanguages:
    """Return the languages of a request that names some, or whose model has some.

    Add to `faults` each language that is missing, unknown, or has no effect. A language has none if
    the model has no languages, or if sources are ids, which must hold those of their language.
    """
    manifest = model.manifest
    prefix, suffix = manifest.source_prefix, manifest.source_suffix
    needed = slots_of(manifest.decoder_start) if decodes else []
    held: list[Slot] = []  # by the sources
    if sources and isinstance(sources[0], str):
        needed += slots_of([*prefix, *suffix])
    elif sources:
        held = [slot for slot in slots_of([*prefix, *suffix]) if slot not in needed]
    ids: dict[Slot, list[int]] = {}
    for slot in get_args(Slot):
        ids[slot] = []
        with faults.collect():
            ids[slot] = read_language(body, slot, model, slot in needed)
        if slot in held and ids[slot]:
            with faults.collect():
                check_held(body, slot, ids[slot])
    source = model.source.between(fill(prefix, ids), fill(suffix, ids))
    return RequestLanguages(source, tuple(ids["target_language"]))


def read_language(body: LanguageRequest, slot: Slot, model: Model, needed: bool) -> list[int]:
    """Return the ids of the given language. Without one, return those of the default or the only
    language if one is needed, else none."""
    languages = model.manifest.languages
    codes, side = languages.of(slot), slot.removesuffix("_language")
    given: str | None = getattr(body, slot)
    default = languages.default(slot)
    if given is None and needed and default is None:
        raise Invalid.at(
            f"/{slot}",
            f"is required, because this model has {len(codes)} {side} languages: give one, such as"
            f" {', '.join(sorted(codes)[:NAMED])}; `languages` of model {model.name} lists all",
        )
    if given is None:
        return codes[default] if needed and default is not None else []
    if not codes:
        kind = f"{side} languages" if languages.source or languages.target else "languages"
        raise Invalid.at(f"/{slot}", f"has no effect: this model has no {kind}: omit {slot}")
    if given not in codes:
        near = nearest(given, codes)
        some = ", ".join(sorted(codes)[:NAMED])
        advice = f"did you mean {' or '.join(near)}?" if near else f"give another, such as {some}."
        raise Invalid.at(
            f"/{slot}",
            f"is {given!r}, which this model does not know: {advice}"
            f" `languages` of model {model.name} lists its {side} languages",
        )
    return codes[given]


def refuse_languages(body: LanguageRequest, where: str, faults: Faults) -> None:
    """Add a fault for each language that is given where none has an effect."""
    for slot in get_args(Slot):
        if getattr(body, slot) is not None:
            faults.add(Invalid.at(f"/{slot}", f"has no effect {where}: omit {slot}"))


def first_pair(manifests: Iterable[Manifest]) -> tuple[str, str] | None:
    """Return two languages of the first model that has some: one to translate from, or AUTO, and
    another one to translate into. None if no model has any."""
    languages = next((each.languages for each in manifests if each.languages.target), None)
    if languages is None:
        return None
    source = next(iter(languages.source), AUTO)
    return source, next((code for code in languages.target if code != source), source)


def check_held(body: LanguageRequest, slot: Slot, ids: list[int]) -> None:
    """Raise Invalid if a language is given for sources that must hold its ids themselves."""
    if getattr(body, slot) is not None:
        raise Invalid.at(
            f"/{slot}",
            "has no effect on sources given as ids, which must hold those of their language"
            f" ({', '.join(map(str, ids))}): omit {slot}, or send texts",
        )


def nearest(given: str, codes: Iterable[str]) -> list[str]:
    """Return codes of the same language, else those that begin alike or are spelled alike, at most
    NAMED: "en" and "English" find "eng_Latn", "es" finds "spa_Latn"."""
    folded = {code.casefold(): code for code in sorted(codes)}
    typed = given.casefold()
    language = re.split(r"[_-]", typed)[0]
    stems = {code: re.split(r"[_-]", code)[0] or code for code in folded}
    same = [code for code, stem in stems.items() if are_same(language, stem)]
    begin = [
        code
        for code, stem in stems.items()
        if stem.startswith(language)
        or code.startswith(typed)
        or (len(stem) > 2 and typed.startswith(stem))
        or (len(stem) == 2 and len(language) == 3 and language.startswith(stem))
    ]
    alike = get_close_matches(typed, folded, NAMED)
    return [folded[code] for code in same or dict.fromkeys([*begin, *alike])][:NAMED]


def language_of(code: str, known: Mapping[str, str]) -> str | None:
    """Return the two letters (ISO 639-1) of the language of a code, None if it is not among
    `known`, which has three letters (ISO 639-3) for two."""
    stem = re.split(r"[_-]", code.casefold())[0]
    stem = INDIVIDUAL.get(stem, stem)
    same = (two for two, three in known.items() if stem == three or are_same(two, stem))
    return next(same, None)


def are_same(one: str, other: str) -> bool:
    return one == other or bool({one + other, other + one} & SAME_LANGUAGE)
