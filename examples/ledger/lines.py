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


def lines(seed: int) -> Iterator[Line]:
    """Yield random lines without end."""
    chance = random.Random(seed)
    while True:
        form, language, name = chance.choice(FORMS), chance.choice([*CODES]), chance.choice(names())
        day = FIRST_DAY + timedelta(chance.randrange(DAYS))
        amount = int(10 ** chance.uniform(0, DIGITS))
        code = CODES[language]
        english = form.format(
            day=format_date(day, "long", "en"),
            amount=format_decimal(amount, locale="en"),
            name=name["en"],
        )
        translation = form.replace(":", " :" if code == "fr" else ":").format(
            day=day_in_words(day, code), amount=num2words(amount, lang=code), name=name[code]
        )
        yield Line(language, english, translation)


def day_in_words(day: date, code: str) -> str:
    month = format_date(day, "MMMM", code)
    year = num2words(day.year, lang=code, to="year")
    if code == "de":
        return f"{num2words(day.day, lang=code, to='ordinal')}r {month} {year}"  # fünfter März
    first = {"fr": "premier", "es": "primero"}[code]
    number = first if day.day == 1 else num2words(day.day, lang=code)
    return f"{number} de {month} de {year}" if code == "es" else f"{number} {month} {year}"


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
