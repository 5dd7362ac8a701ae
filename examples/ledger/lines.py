"""Generate lines of a ledger: English with figures, translations with numbers in words.

"March 5, 2024: 1,234 (Swiss Franc)" is in Spanish "cinco de marzo de dos mil veinticuatro: mil
doscientos treinta y cuatro (franco suizo)". Babel has the names of months, countries and
currencies from the Unicode CLDR; num2words writes the numbers.
"""

import random
from collections.abc import Iterator
from datetime import date, timedelta
from functools import cache
from typing import NamedTuple

from babel import Locale
from babel.dates import format_date
from babel.numbers import format_decimal
from num2words import num2words

FIRST_DAY, DAYS = date(1950, 1, 1), 36_525  # a century
DIGITS = 6  # of the largest amount
FORMS = ("{day}", "{name}: {amount}", "{amount} ({name})", "{day}: {amount} ({name})")
CODES = {"fra": "fr", "deu": "de", "spa": "es"}  # ISO 639-3, as OPUS-MT has it, and CLDR's


class Line(NamedTuple):
    language: str  # ISO 639-3
    english: str
    translation: str


class Part(NamedTuple):
    """What a part of a line is called in both languages, such as its month."""

    english: str
    translation: str


def lines(seed: int) -> Iterator[Line]:
    """Yield random lines without end."""
    for language, form, parts in drawn(seed):
        yield Line(language, *write(language, form, parts))


def marked_lines(seed: int) -> Iterator[Line]:
    """Yield the same lines with a tag around each part, in both languages: <year>2024</year>."""
    for language, form, parts in drawn(seed):
        marked = {
            name: Part(*(f"<{name}>{text}</{name}>" for text in part))
            for name, part in parts.items()
        }
        yield Line(language, *write(language, form, marked))


def drawn(seed: int) -> Iterator[tuple[str, str, dict[str, Part]]]:
    """Yield the language, the form and the parts of random lines."""
    chance = random.Random(seed)
    while True:
        form, language, name = chance.choice(FORMS), chance.choice([*CODES]), chance.choice(names())
        day = FIRST_DAY + timedelta(chance.randrange(DAYS))
        amount = int(10 ** chance.uniform(0, DIGITS))
        code = CODES[language]
        parts = {
            "month": Part(*(format_date(day, "MMMM", each) for each in ("en", code))),
            "date": Part(str(day.day), day_in_words(day.day, code)),
            "year": Part(str(day.year), num2words(day.year, lang=code, to="year")),
            "amount": Part(format_decimal(amount, locale="en"), num2words(amount, lang=code)),
            "name": Part(name["en"], name[code]),
        }
        yield language, form, parts


def write(language: str, form: str, parts: dict[str, Part]) -> tuple[str, str]:
    """Return a line in English and in the language."""
    english = {name: part.english for name, part in parts.items()}
    translation = {name: part.translation for name, part in parts.items()}
    day = "{date} de {month} de {year}" if language == "spa" else "{date} {month} {year}"
    spaced = form.replace(":", " :" if language == "fra" else ":")
    return (
        form.replace("{day}", "{month} {date}, {year}").format(**english),
        spaced.replace("{day}", day).format(**translation),
    )


def day_in_words(day: int, code: str) -> str:
    if code == "de":
        return f"{num2words(day, lang=code, to='ordinal')}r"  # fünfter
    first = {"fr": "premier", "es": "primero"}[code]
    return first if day == 1 else num2words(day, lang=code)


@cache
def names() -> list[dict[str, str]]:
    """Return names of countries and currencies, each by the code of the language it is in."""
    locales = {code: Locale(code) for code in ("en", *CODES.values())}
    found: list[dict[str, str]] = []
    for kind in ("territories", "currencies"):
        tables = {code: getattr(locale, kind) for code, locale in locales.items()}
        common = set.intersection(*(set(table) for table in tables.values()))
        found += [{code: table[key] for code, table in tables.items()} for key in sorted(common)]
    return [name for name in found if "(" not in name["en"]]
