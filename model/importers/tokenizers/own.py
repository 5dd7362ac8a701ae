"""Read the tokenizers of a model of your own: files of `tokenizers`, or vocabularies of words or
letters."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import WordLevel

from model.checkpoint import TOKENIZERS
from model.data.text_file import read_text
from model.importers.checkpoint import OWN, Checkpoint
from model.importers.description import LETTERS, Description, read_description
from model.importers.tokenizers.piece_file import read_vocabulary
from model.importers.tokenizers.tokenizer_file import open_library, unknown_of
from model.network.config import InputError

SAMPLE = 8  # letters of a text that shows whether decoding puts spaces between them
IDEOGRAPHS = "\u2e80"  # from here on, some tokenizers separate letters on purpose


def plain_tokenizers(checkpoint: Checkpoint) -> tuple[Tokenizer, Tokenizer]:
    """Return the tokenizers of source and target.

    Each has a vocabulary that heed.toml names, or else is source.tokenizer.json or
    target.tokenizer.json. The tokens of padding, start and end are special. Raise InputError if one
    is missing, damaged, or does not fit the weights.
    """
    description = read_description(checkpoint)
    vocabularies = description.source_vocabulary, description.target_vocabulary
    matrices = description.source_embedding, description.output
    built: list[Tokenizer] = []
    sides = zip(vocabularies, description.unit, TOKENIZERS, matrices, strict=True)
    for vocabulary, unit, name, matrix in sides:
        rows = len(checkpoint.tensor(matrix))
        if vocabulary:
            path = checkpoint.folder / vocabulary
            tokenizer = vocabulary_tokenizer(path, unit, description, rows)
        else:
            tokenizer = stored_tokenizer(checkpoint.folder / name, description, rows)
        special = dict.fromkeys((description.pad_id, description.start_id, description.eos_id))
        names = [tokenizer.id_to_token(i) for i in special]
        tokenizer.add_special_tokens([name for name in names if name is not None])
        tokenizer.encode_special_tokens = True  # typed ones are text
        built.append(tokenizer)
    return built[0], built[1]


def stored_tokenizer(path: Path, description: Description, rows: int) -> Tokenizer:
    """Read a file of `tokenizers` without the special ids, padding and truncation that it may add
    to texts."""
    if not path.is_file():
        side = path.name.partition(".")[0]
        raise InputError(
            f"{path.parent} has no {path.name}: save the tokenizer so, or name a word list or a"
            f" vocab.json as {side}_vocabulary in {OWN}"
        )
    tokenizer = open_library(path)
    if (last := max(tokenizer.get_vocab().values(), default=0)) >= rows:
        raise InputError(
            f"{path} has a token of id {last}, but the model has rows for only {rows} tokens: give"
            " the tokenizer that the model was trained with"
        )
    tokenizer = with_readable_unknown(tokenizer, description)
    check_spaces(path, tokenizer)
    return tokenizer


def with_readable_unknown(tokenizer: Tokenizer, description: Description) -> Tokenizer:
    """Return a tokenizer with an unknown token that texts may hold: it is not special. Without one,
    unknown text is read as padding, which the service refuses."""
    document = json.loads(tokenizer.to_str())
    model: dict[str, Any] = document["model"]
    pad, unknown = tokenizer.id_to_token(description.pad_id), unknown_of(model)
    if model["type"] == "Unigram":
        known = unknown is not None
        if not known and description.pad_id < len(model["vocab"]):
            model["unk_id"] = description.pad_id
    else:
        known = unknown in model["vocab"]
        if not known and pad in model["vocab"]:
            model["unk_token"] = pad
        elif not known and model["type"] == "WordLevel":
            raise InputError(
                f"{description.path}: neither unknown_token {unknown!r} nor the token of pad_id is"
                " in the vocabulary of a *.tokenizer.json: name the token of unknown text"
            )
    added: list[dict[str, Any]] = document["added_tokens"]
    document["added_tokens"] = [t for t in added if not known or t["content"] != unknown]
    return Tokenizer.from_str(json.dumps(document))


def refused_unknown(description: Description, *tokenizers: Tokenizer) -> int | None:
    """Return the id of padding if a tokenizer reads unknown text as padding. Return None if both
    have an unknown token: the model was trained to read it."""
    refused = any(
        unknown_of(json.loads(each.to_str())["model"]) == each.id_to_token(description.pad_id)
        for each in tokenizers
    )
    return description.pad_id if refused else None


def check_spaces(path: Path, tokenizer: Tokenizer) -> None:
    """Raise InputError if decoding puts spaces between the tokens of a text that has none."""
    names = [name for name in tokenizer.get_vocab() if len(name) == 1 and name < IDEOGRAPHS]
    text = "".join(sorted(filter(str.isalpha, names))[:SAMPLE])
    decoded = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids)
    if " " in decoded.strip():
        raise InputError(
            f"{path} decodes {text!r} to {decoded!r}, with spaces between tokens: set"
            " tokenizer.decoder = tokenizers.decoders.Fuse(), or the decoder that it was trained"
            f' with, and save it again; or give a vocab.json and unit = "{LETTERS}" in {OWN}'
        )


def vocabulary_tokenizer(path: Path, unit: str, description: Description, rows: int) -> Tokenizer:
    """Build a tokenizer of letters, or of words between white space.

    Without an unknown token, unknown text is read as padding, which the service refuses.
    """
    tokens, unknown = read_tokens(path, unit, rows), description.unknown_token
    if unknown and unknown not in tokens:
        raise InputError(
            f"{description.path}: unknown_token is {unknown!r}, which {path.name} lacks: give the"
            " token that stands for unknown text"
        )
    if description.pad_id >= len(tokens):
        raise InputError(
            f"{description.path}: pad_id is {description.pad_id}, but {path.name} has only"
            f" {len(tokens)} tokens: give padding a token"
        )
    vocabulary = {token: i for i, token in enumerate(tokens)}
    unknown = unknown or tokens[description.pad_id]
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if unit == LETTERS:
        tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        tokenizer.decoder = decoders.Fuse()
    return tokenizer


def read_tokens(path: Path, unit: str, rows: int) -> list[str]:
    """Return the tokens in the order of their ids: of an object in a .json, or the lines of another
    file. Raise InputError if they do not fit the unit or the rows of the embedding."""
    if not path.is_file():
        raise InputError(f"{path.parent} has no {path.name}, which {OWN} names as a vocabulary")
    is_json = path.suffix == ".json"
    tokens = read_vocabulary(path) if is_json else read_word_list(path, unit)
    if unit == LETTERS and not any(len(token) == 1 for token in tokens):
        raise InputError(
            f'{path} has no token of one letter: leave unit = "{LETTERS}" out of {OWN}'
        )
    if len(tokens) > rows or (len(tokens) < rows and not is_json):
        raise InputError(
            f"{path} has {len(tokens)} tokens, but the model has {rows} rows: give every row a"
            " line, special tokens and unused rows included"
        )
    return tokens


def read_word_list(path: Path, unit: str) -> list[str]:
    """Return the lines of a file. Raise InputError naming the first that is not one new token."""
    # not splitlines(), which also splits at separators that white space does not include
    lines = read_text(path).removesuffix("\n").split("\n")
    seen: set[str] = set()
    for number, line in enumerate(lines, 1):
        if line.split() != [line] and (unit != LETTERS or len(line) != 1):
            raise InputError(f"{path}:{number}: expected one token, got {line!r}")
        if line in seen:
            raise InputError(f"{path}:{number}: {line!r} is in the list already: remove one")
        seen.add(line)
    return lines
