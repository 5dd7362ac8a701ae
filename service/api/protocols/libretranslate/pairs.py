"""The languages that each model translates from and into, by the model's own codes."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from service.api.reading.languages import AUTO, NAMED, nearest
from service.errors import Invalid
from service.serving.model import Model

NO_LANGUAGES = "no model of this service has languages: serve one that has, by HEED_BUNDLES"


class Unsupported(Invalid):
    """A language that no model has, in the words of LibreTranslate. `remedy` says what to send
    instead."""

    def __init__(self, code: str, remedy: str) -> None:
        super().__init__(f"{code} is not supported")
        self.remedy = remedy


class Pairs(NamedTuple):
    """The languages that a model translates from and into."""

    model: Model
    sources: list[str]
    targets: list[str]


def pairs_of(models: Iterable[Model]) -> list[Pairs]:
    """Return the models that have target languages. One that lists no source language translates
    from AUTO."""
    found: list[Pairs] = []
    for model in models:
        languages = model.manifest.languages
        if languages.target:
            found.append(Pairs(model, list(languages.source) or [AUTO], list(languages.target)))
    return found


def choose_model(every: Sequence[Pairs], source: str, target: str) -> Model:
    """Return the first model that translates from one language into another. Raise Invalid."""
    check_any(every)
    check_source(source, every)
    check_target(target, every, [each for each in every if source in each.sources])
    fitting = [each.model for each in every if source in each.sources and target in each.targets]
    if not fitting:
        detail = f"is {target!r}, into which no model translates from {source!r}: GET /languages"
        raise Invalid.at("/target", f"{detail} lists the targets of each language")
    return fitting[0]


def sources_of(every: Iterable[Pairs]) -> tuple[str, ...]:
    """Return the languages that the models list as sources: those that may be detected."""
    codes = dict.fromkeys(code for each in every for code in each.sources)
    return tuple(code for code in codes if code != AUTO)


def sources_into(every: Sequence[Pairs], target: str) -> tuple[str, ...]:
    """Return the languages from which some model translates into another one. Raise Invalid if no
    model has that."""
    check_any(every)
    check_target(target, every, every)
    return tuple(
        dict.fromkeys(code for each in every if target in each.targets for code in each.sources)
    )


def check_any(every: Sequence[Pairs]) -> None:
    if not every:
        raise Invalid.at("/target", f"cannot be chosen: {NO_LANGUAGES}")


def check_source(given: str, every: Sequence[Pairs]) -> None:
    """Raise Unsupported if no model translates from this language."""
    sources = [code for each in every for code in each.sources]
    if given not in sources:
        only_target = any(given in each.targets for each in every)
        raise Unsupported(given, advise(given, sources, "source" if only_target else ""))


def check_target(given: str, every: Sequence[Pairs], fitting: Iterable[Pairs]) -> None:
    """Raise Unsupported if no model translates into this language, and advise languages into which
    those that are `fitting` do."""
    if all(given not in each.targets for each in every):
        only_source = any(given in each.sources for each in every)
        targets = [code for each in fitting for code in each.targets]
        raise Unsupported(given, advise(given, targets, "target" if only_source else ""))


def advise(given: str, codes: Sequence[str], lacking: str) -> str:
    """Return which codes to send in place of another one. If `lacking`, a side, is not empty, the
    code is known on the other side alone."""
    near = nearest(given, codes)
    some = ", ".join(sorted(set(codes))[:NAMED])
    advice = f"did you mean {' or '.join(near)}?" if near else f"give one, such as {some};"
    why = f"it is not a {lacking} language here: " if lacking else ""
    return f"{why}{advice} GET /languages lists all"
