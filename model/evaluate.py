"""Exact matches and edit distances, or for phonemes the error rates of their literature."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from rich.console import Console
from rich.progress import track
from tokenizers import Tokenizer

from model.checkpoint import TrainedModel
from model.data.pairs import Pair, encode_sources, pad
from model.data.tokenizers import SPECIALS, Unit, normalize, unit_of
from model.search import beam_search, greedy_search

DECODING_BATCH_SIZE = 256
# The phonemes of ARPAbet that CMUdict and TIMIT have; a vowel may end with its stress
VOWELS = "AA AE AH AO AW AX AXR AY EH ER EY IH IX IY OW OY UH UW UX"
CONSONANTS = "B CH D DH DX EL EM EN F G HH JH K L M N NG NX P Q R S SH T TH V W WH Y Z ZH"
PHONEME = re.compile(f"(?:{'|'.join(VOWELS.split())})[0-2]?|{'|'.join(CONSONANTS.split())}")


@dataclass(frozen=True, slots=True)
class ErrorRates:
    """Word and phoneme error rate, in percent.

    A word is wrong unless it equals one of its references. The phoneme error rate divides the sum
    of edit distances to the nearest references by the sum of those references' lengths.
    """

    words: int
    word: float
    phoneme: float

    def __str__(self) -> str:
        return f"WER {self.word:.2f} %, PER {self.phoneme:.2f} %"


def predict(model: TrainedModel, sources: Sequence[str], beam_size: int) -> list[str]:
    """Return each source's best target text, in order. Raise InputError if a source is too long."""
    config = model.transformer.config
    max_new_tokens = config.max_target_length
    ids = encode_sources(sources, model.source_tokenizer, config)
    # batches of similar lengths, the shortest first, to save padding
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    texts: dict[int, str] = {}
    starts = range(0, len(order), DECODING_BATCH_SIZE)
    for start in track(starts, "decoding", console=Console(stderr=True)):
        chosen = order[start : start + DECODING_BATCH_SIZE]
        source_ids, source_length = pad([ids[i] for i in chosen], config.pad_id)
        if beam_size == 1:
            best = greedy_search(model.transformer, source_ids, source_length, max_new_tokens)
        else:
            rows = zip(source_ids, source_length.tolist(), strict=True)
            best = [
                beam_search(model.transformer, row[:length], beam_size, max_new_tokens)[0]
                for row, length in rows
            ]
        decoded = model.target_tokenizer.decode_batch([list(h.token_ids) for h in best])
        texts |= zip(chosen, decoded, strict=True)
    return [texts[i] for i in range(len(ids))]


def edit_distance(a: Sequence[str], b: Sequence[str]) -> int:
    """Return the Levenshtein distance: insertions, deletions and substitutions cost 1."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


def without_stress(text: str) -> str:
    """Remove ARPAbet's stress: the digit 0, 1 or 2 at the end of a phoneme in capitals."""
    return re.sub(r"(?<=[A-Z])[0-2]\b", "", text)


def by_source(pairs: Sequence[Pair]) -> dict[str, list[str]]:
    """Collect the targets of each source: a word may have several pronunciations."""
    references: dict[str, list[str]] = {}
    for source, target in pairs:
        references.setdefault(source, []).append(target)
    return references


def count_errors(
    predictions: dict[str, str], pairs: Sequence[Pair], split: Callable[[str], list[str]]
) -> tuple[int, float, float]:
    """Return the number of sources, the percentage whose prediction equals no reference, and the
    sum of edit distances to the nearest references as a percentage of those references' lengths.

    `split` returns the units of a text, which are compared and counted.
    """
    references = by_source(pairs)
    wrong = edits = length = 0
    for source, texts in references.items():
        predicted, targets = split(predictions[source]), [split(text) for text in texts]
        wrong += predicted not in targets
        nearest = min(targets, key=lambda target: edit_distance(predicted, target))
        edits += edit_distance(predicted, nearest)
        length += len(nearest)
    return len(references), 100 * wrong / len(references), 100 * edits / length


def error_rates(predictions: dict[str, str], pairs: Sequence[Pair], stress: bool) -> ErrorRates:
    """Score `predictions`, keyed by source; `stress` False strips stress from both sides."""

    def phonemes(text: str) -> list[str]:
        return (text if stress else without_stress(text)).split()

    return ErrorRates(*count_errors(predictions, pairs, phonemes))


def stress_accuracy(predictions: dict[str, str], pairs: Sequence[Pair]) -> float:
    """Return the percentage of correct vowels whose stress is correct too.

    It is nan if no vowel is correct. difflib aligns phonemes, without stress, by longest common
    runs. With several references, the one with the most correctly stressed vowels counts.
    """
    right = found = 0
    for source, targets in by_source(pairs).items():
        counts = [stressed_vowels(predictions[source], target) for target in targets]
        best = max(counts)
        right, found = right + best[0], found + best[1]
    return 100 * right / found if found else math.nan


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Error rates without and with stress, and how often the stress is right."""

    plain: ErrorRates  # stress stripped
    stressed: ErrorRates
    stress: float  # percentage, see `stress_accuracy`

    def __str__(self) -> str:
        text = f"{self.plain.words} words, stress stripped: {self.plain}"
        if math.isnan(self.stress):
            return text
        return f"{text}; with stress: {self.stressed}; {self.stress:.1f} % of stresses right"


def accuracy(predictions: dict[str, str], pairs: Sequence[Pair]) -> Accuracy:
    """Score `predictions`, keyed by source, against all pairs."""
    return Accuracy(
        error_rates(predictions, pairs, stress=False),
        error_rates(predictions, pairs, stress=True),
        stress_accuracy(predictions, pairs),
    )


@dataclass(frozen=True, slots=True)
class Matches:
    """How many predictions equal a reference, and the edit distance to the nearest, in percent."""

    sources: int
    exact: float
    distance: float  # edits as a percentage of the references' units
    unit: str

    def __str__(self) -> str:
        return (
            f"{self.sources} sources: {self.exact:.2f} % exact;"
            f" edit distance {self.distance:.2f} % of the {self.unit}"
        )


def count_matches(predictions: dict[str, str], pairs: Sequence[Pair], target: Tokenizer) -> Matches:
    """Score `predictions`, keyed by source, against all pairs, normalized as in training.

    Edits are of words if the targets were split into words, else of characters: not all languages
    have spaces between words.
    """
    words = unit_of(target) is Unit.words

    def units(text: str) -> list[str]:
        return text.split() if words else [*normalize(target, text)]

    sources, wrong, distance = count_errors(predictions, pairs, units)
    return Matches(sources, 100 - wrong, distance, "words" if words else "characters")


def score(
    predictions: dict[str, str], pairs: Sequence[Pair], target: Tokenizer
) -> Accuracy | Matches:
    """Score predictions as phonemes if the target vocabulary has nothing else, else as texts."""
    if are_phonemes(target):
        return accuracy(predictions, pairs)
    return count_matches(predictions, pairs, target)


def are_phonemes(target: Tokenizer) -> bool:
    tokens = target.get_vocab().keys() - SPECIALS
    return bool(tokens) and all(map(PHONEME.fullmatch, tokens))


def stressed_vowels(predicted: str, target: str) -> tuple[int, int]:
    """Count the vowels of `target` that `predicted` has with the right stress, and with any."""
    ours, theirs = predicted.split(), target.split()
    plain = without_stress(predicted).split(), without_stress(target).split()
    blocks = SequenceMatcher(None, *plain, autojunk=False).get_matching_blocks()
    vowels = [
        ours[block.a + i] == theirs[block.b + i]
        for block in blocks
        for i in range(block.size)
        if theirs[block.b + i] != plain[1][block.b + i]
    ]
    return sum(vowels), len(vowels)
