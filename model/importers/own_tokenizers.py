"""Read the tokenizers of a model of your own: files of `tokenizers`, or lists of words."""

from pathlib import Path

from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel

from model.checkpoint import TOKENIZERS
from model.importers.checkpoint import Checkpoint
from model.importers.description import OWN, Description, read_description
from model.importers.tokenizer_file import open_library
from model.network.config import InputError


def plain_tokenizers(checkpoint: Checkpoint) -> tuple[Tokenizer, Tokenizer]:
    """Return the tokenizers of source and target.

    Each is a word list that heed.toml names, or else source.tokenizer.json or
    target.tokenizer.json. Raise InputError if one is missing, damaged, or does not fit the weights.
    """
    description = read_description(checkpoint)
    lists = description.source_vocabulary, description.target_vocabulary
    matrices = description.source_embedding, description.output
    built: list[Tokenizer] = []
    for words, name, matrix in zip(lists, TOKENIZERS, matrices, strict=True):
        rows = len(checkpoint.tensor(matrix))
        if words:
            built.append(word_tokenizer(checkpoint.folder / words, description, rows))
        else:
            built.append(stored_tokenizer(checkpoint.folder / name, rows))
    return built[0], built[1]


def stored_tokenizer(path: Path, rows: int) -> Tokenizer:
    """Read a file of `tokenizers` without the special ids, padding and truncation that it may add
    to texts."""
    if not path.is_file():
        side = path.name.partition(".")[0]
        raise InputError(
            f"{path.parent} has no {path.name}: save the tokenizer so, or name a word list as"
            f" {side}_vocabulary in {OWN}"
        )
    tokenizer = open_library(path)
    if (last := max(tokenizer.get_vocab().values(), default=0)) >= rows:
        raise InputError(
            f"{path} has a token of id {last}, but the model has rows for only {rows} tokens: give"
            " the tokenizer that the model was trained with"
        )
    return tokenizer


def word_tokenizer(path: Path, description: Description, rows: int) -> Tokenizer:
    """Build a tokenizer of words between white space; the id of a word is its line, from 0."""
    words, unknown = read_words(path), description.unknown_token
    if len(words) != rows:
        raise InputError(
            f"{path} has {len(words)} tokens, but the model has {rows} rows: give every row a"
            " line, special tokens and unused rows included"
        )
    if unknown not in words:
        raise InputError(
            f"{description.path}: unknown_token is {unknown!r}, which {path.name} lacks: give the"
            " token that stands for unknown words"
        )
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = (description.pad_id, description.start_id, description.eos_id)
    tokenizer.add_special_tokens([words[i] for i in dict.fromkeys(special) if i < rows])
    return tokenizer


def read_words(path: Path) -> list[str]:
    """Return the lines of a file. Raise InputError naming the first that is not one new word."""
    if not path.is_file():
        raise InputError(f"{path.parent} has no {path.name}, which {OWN} names as a vocabulary")
    try:
        # not splitlines(), which also splits at separators that white space does not include
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8: convert it") from error
    seen: set[str] = set()
    for number, line in enumerate(lines, 1):
        if line.split() != [line]:
            raise InputError(f"{path}:{number}: expected one token, got {line!r}")
        if line in seen:
            raise InputError(f"{path}:{number}: {line!r} is in the list already: remove one")
        seen.add(line)
    return lines
