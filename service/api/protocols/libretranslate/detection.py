"""Detect the language of a text by the package lingua, among languages with a model's codes."""

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from service.api.reading.languages import language_of
from service.errors import Invalid

if TYPE_CHECKING:
    from lingua import Language, LanguageDetector

READ = 1000  # characters of a text that are read: about a millisecond of work
MOST = 3  # languages that are returned
# A text of each script that several languages share, and one of them. The others are known by it.
PROBES = {"EN": "and so on", "RU": "кто там", "FA": "سلام", "HI": "नमक"}


class Detected(NamedTuple):
    language: str
    confidence: float  # 0 to 100


class Detector:
    """Detects languages. Codes of languages that lingua does not know are never detected."""

    def __init__(self, codes: Sequence[str]) -> None:
        """Read the models of these languages: about 1 MB each. Raise Invalid without the package.

        Low accuracy: the models of the other mode take a gigabyte for all languages, and seconds
        to read.
        """
        try:
            from lingua import Language, LanguageDetectorBuilder
        except ImportError as error:
            detail = "to detect a language, the service needs the package lingua-language-detector:"
            raise Invalid(f"{detail} install heed-server[detect], or name the language") from error

        def open_detector(languages: Iterable["Language"]) -> "LanguageDetector":
            builder = LanguageDetectorBuilder.from_languages(*languages)
            return builder.with_low_accuracy_mode().build()

        every = {each.iso_code_639_1.name: each for each in Language.all()}
        known = {name.lower(): each.iso_code_639_3.name.lower() for name, each in every.items()}
        self._names = {code: language_of(code, known) for code in codes}
        self._codes: dict[Language, list[str]] = {}
        for code, name in self._names.items():
            if name is not None:
                self._codes.setdefault(every[name.upper()], []).append(code)
        # lingua reads a model at its first use, and keeps the interpreter's lock meanwhile: for all
        # languages at once a second, one by one at most 50 ms.
        for language in self._codes:
            for name, text in PROBES.items():
                if language != every[name]:
                    open_detector([language, every[name]]).compute_language_confidence_values(text)
        # With one language the library answers 0 or 1, which says nothing
        self._library = open_detector(self._codes) if len(self._codes) > 1 else None

    def detect(self, text: str, codes: Collection[str] = ()) -> list[Detected]:
        """Return the most probable of `codes`, or of all if none is given, best first, each with
        its confidence among all languages.

        If none is probable, as for digits, or the detector has only one language, return English
        or else the first language, with confidence 0.
        """
        codes = codes or self._names
        values = self._library.compute_language_confidence_values(text) if self._library else []
        found = [
            Detected(code, round(100 * each.value, 1))
            for each in values
            if each.value
            for code in [code for code in self._codes[each.language] if code in codes][:1]
        ][:MOST]
        likely = found[:1] + [each for each in found[1:] if each.confidence]
        return likely or [Detected(self._choose_without_text(codes), 0.0)]

    def _choose_without_text(self, codes: Collection[str]) -> str:
        """Return English, or else the first language that the library knows, or else the first."""
        names = self._names
        return min(codes, key=lambda code: (names[code] != "en", names[code] is None))


@lru_cache(4)  # models may change while the service runs
def detector_of(codes: tuple[str, ...]) -> Detector:
    return Detector(codes)


def beginning(texts: Iterable[str]) -> str:
    """Return the first READ characters of texts."""
    found = ""
    for text in texts:
        found += text[: READ - len(found)] + "\n"
        if len(found) >= READ:
            break
    return found[:READ]
