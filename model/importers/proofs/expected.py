"""Compare what a converted model writes with right answers from a file.

Nothing else can prove what the tensors do not show, such as the number of heads, or the ids around
a text.
"""

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from model.export.checks.samples import decode
from model.importers.proofs.proof import Proof
from model.importers.proofs.texts import Reader, read_text
from model.network.config import InputError
from model.network.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Expected:
    """A file of lines source<TAB>target, and the least share of targets that must come out."""

    file: Path
    share: float


def answers_of(file: Path | None, share: float | None) -> Expected | None:
    """Return what `--expected` and `--expected-share` ask for. Raise InputError for a share
    without a file."""
    if file is not None:
        return Expected(file, 1 if share is None else share)
    if share is not None:
        raise InputError("--expected-share says nothing without --expected FILE: give both")
    return None


def prove_expected(
    model: Transformer, reader: Reader, target: Tokenizer, start: list[int], expected: Expected
) -> Proof:
    """Decode the sources greedily, and compare the texts. White space at their ends is ignored.

    Raise InputError for a line without a tab, and for a source that is too long.
    """
    pairs = read_expected(expected.file)
    sources = [reader.whole(source, f"{expected.file}:{line}") for line, source, _ in pairs]
    longest = model.config.max_target_length + 1 - len(start)
    found = decode(model, sources, start, longest)
    wrong: list[str] = []
    for (line, _, right), (_, ids) in zip(pairs, found, strict=True):
        text = target.decode(ids[len(start) :]).strip()
        if text != right.strip():
            wrong.append(f"line {line} gives {text[:40]!r} for {right[:40]!r}")
    share = (len(pairs) - len(wrong)) / len(pairs)
    example = f"; {wrong[0]}" if wrong else ""
    result = f"{len(pairs) - len(wrong)} of {len(pairs)} answers come out ({share:.1%}){example}"
    return Proof("expected answers", expected.file.name, result, share >= expected.share)


def read_expected(path: Path) -> list[tuple[int, str, str]]:
    """Return line number, source and target of each line that is not empty."""
    pairs: list[tuple[int, str, str]] = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        source, tab, target = line.partition("\t")
        if not tab:
            raise InputError(f"{path}:{number}: expected source<TAB>target, got {line[:40]!r}")
        pairs.append((number, source, target))
    if not pairs:
        raise InputError(f"{path} holds no answer: give a file of lines source<TAB>target")
    return pairs
