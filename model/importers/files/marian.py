"""Find the files of a model of Marian in a folder: weights, vocabularies, and how it decodes.

Marian, OPUS-MT's zips and Firefox name them differently. A file of settings, such as decoder.yml,
may name them; names in it are those of files in this folder, whatever paths it gives.
"""

from collections.abc import Sequence
from pathlib import Path

from model.importers.files.container import Container
from model.importers.files.flat_yaml import Values, read_flat
from model.importers.files.intgemm_file import is_binary, open_binary
from model.importers.files.npz_file import open_npz
from model.importers.files.reading import PACKED, head_of, read
from model.network.config import InputError

SETTINGS = ("decoder.yml", "*.decoder.yml", "config*.yml")  # the first of these that exists
NOT_WEIGHTS = ("lex.", "pytorch_model", "training_args", "optimizer", "scheduler")
BOTH, SOURCE, TARGET = (
    ("vocab*", "*.vocab"),
    ("srcvocab*", "*src.vocab", "vocab.src", "source.vocab"),
    ("trgvocab*", "*trg.vocab", "*tgt.vocab", "vocab.trg", "vocab.tgt", "target.vocab"),
)
KINDS = (".spm", ".yml")  # of vocabularies


def find_weights(folder: Path) -> list[Path]:
    """Return the files that may be weights of Marian."""
    arrays = [path for path in sorted(folder.glob("*.npz")) if "optimizer" not in path.name]
    binaries = [*sorted(folder.glob("*.bin")), *sorted(folder.glob(f"*.bin{PACKED}"))]
    return arrays + [path for path in binaries if may_be_weights(path)]


def may_be_weights(path: Path) -> bool:
    """Return whether a .bin is Marian's by its name, such as model.enfr.intgemm.alphas.bin, or by
    its first bytes."""
    if path.name.startswith(NOT_WEIGHTS) or not path.is_file():
        return False
    named = "intgemm" in path.name or (path.name.startswith("model.") and path.name.count(".") > 1)
    return named or is_binary(head_of(path, 8))


def open_marian(folder: Path) -> Container:
    """Return the weights of a folder. Raise InputError if there are several, or if they are
    damaged."""
    found, named = find_weights(folder), listed(read_settings(folder), "models")
    if len(named) > 1:
        raise InputError(
            f"{folder} is an ensemble of {len(named)} models, of which Heed serves one: leave one"
            " in models of its decoder.yml"
        )
    chosen = [path for path in found if plain_name(path) in named] or found
    if len(chosen) > 1:
        names = ", ".join(path.name for path in chosen[:3])
        raise InputError(f"{folder} has {len(chosen)} files of weights, {names}: leave one in it")
    (path,) = chosen
    return open_npz(path) if path.suffix == ".npz" else open_binary(path)


def read_settings(folder: Path) -> Values:
    """Return how Marian's decoder was to be called; {} if no file says so."""
    paths = [path for pattern in SETTINGS for path in sorted(folder.glob(pattern))]
    return read_flat(read(paths[0]), str(paths[0])) if paths else {}


def listed(settings: Values, key: str) -> list[str]:
    """Return the names of files that settings list, without the folders in which they were."""
    value = settings.get(key, [])
    names = [value] if isinstance(value, str) else value
    return [name.replace("\\", "/").rpartition("/")[2] for name in names]


def plain_name(path: Path) -> str:
    return path.name.removesuffix(PACKED)


def find_vocabularies(folder: Path) -> tuple[Path, Path]:
    """Return the vocabularies of source and target, which may be one file. Raise InputError if they
    are missing, or cannot be told apart."""
    names = listed(read_settings(folder), "vocabs")
    if factored := [name for name in names if name.endswith(".fsv")]:
        raise InputError(
            f"{folder} has a vocabulary of factors, {factored[0]}: Heed has no factors, so this"
            " model cannot be converted"
        )
    found = {plain_name(path): path for path in sorted(folder.iterdir()) if path.is_file()}
    if names and all(name in found for name in names):
        return found[names[0]], found[names[-1]]
    for kind in KINDS:
        sides = [matching(folder, patterns, kind) for patterns in (SOURCE, TARGET)]
        both = [each for each in matching(folder, BOTH, kind) if each not in (*sides[0], *sides[1])]
        if len(sides[0]) == len(sides[1]) == 1:
            return sides[0][0], sides[1][0]
        if len(both) == 1 and not (sides[0] or sides[1]):
            return both[0], both[0]
    raise InputError(
        f"{folder} has no vocabulary of its own that is known by its name, such as vocab.enfr.spm,"
        " srcvocab.enzh.spm with trgvocab.enzh.spm, or opus.vocab.yml: copy the whole folder, or"
        " name both as vocabs in a decoder.yml"
    )


def matching(folder: Path, patterns: Sequence[str], kind: str) -> list[Path]:
    return sorted(
        {
            path
            for pattern in patterns
            for ending in ("", PACKED)
            for path in folder.glob(f"{pattern}{kind}{ending}")
        }
    )
