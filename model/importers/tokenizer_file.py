"""Read a tokenizer.json, which transformers 5 saves in place of a sentencepiece model."""

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders

from model.importers.files import read
from model.importers.pieces import HIDDEN, Converted, add_special
from model.network.config import InputError

MODELS = ("Unigram", "BPE")


def open_library(path: Path) -> Tokenizer:
    """Read the file without the ids, padding and truncation that it may add to texts."""
    content = read(path)
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises no other class
        raise InputError(f"{path} is not a file of the tokenizers library: {error}") from error
    tokenizer.post_processor = None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def convert_library(library: Tokenizer, path: Path, languages: Collection[str] = ()) -> Converted:
    """Return a tokenizer with the same ids that reads typed special tokens, such as "</s>", and
    the tokens of `languages` as text: their names are hidden as in `pieces`.

    Its unknown token is not special: a letter that the vocabulary lacks is read as unknown. Raise
    InputError if the model is neither Unigram nor BPE.
    """
    document = json.loads(library.to_str())
    model: dict[str, Any] = document["model"]
    if model["type"] not in MODELS:
        raise InputError(
            f"{path} has a model of type {model['type']}: Heed reads {' and '.join(MODELS)}"
        )
    unknown = unknown_of(model)
    added: list[dict[str, Any]] = document["added_tokens"]
    names = {unknown, *languages, *(token["content"] for token in added if token["special"])}
    hidden = {name: name + HIDDEN for name in names if name}
    document["model"] = hide(model, hidden)
    document["added_tokens"] = [
        token | {"content": hidden[name], "special": True} if name in hidden else token
        for token in added
        if (name := token["content"]) != unknown
    ]
    tokenizer = Tokenizer.from_str(json.dumps(document))
    add_special(tokenizer, [hidden[name] for name in languages])  # those that are pieces
    tokenizer.encode_special_tokens = True
    if tokenizer.decoder is not None:
        tokenizer.decoder = decoders.Sequence([decoders.Replace(HIDDEN, ""), tokenizer.decoder])
    return Converted(tokenizer, compose=False, dropped=0)


def unknown_of(model: Mapping[str, Any]) -> str | None:
    """Return the name of the unknown token; None if the model has none, as byte-level BPE."""
    if model["type"] != "Unigram":
        return model["unk_token"]
    return None if model["unk_id"] is None else model["vocab"][model["unk_id"]][0]


def hide(model: dict[str, Any], hidden: Mapping[str, str]) -> dict[str, Any]:
    """Return the model with these names changed, and without the merges that lead to them."""
    if model["type"] == "Unigram":
        vocab = [[hidden.get(name, name), score] for name, score in model["vocab"]]
        return model | {"vocab": vocab}
    return model | {
        "vocab": {hidden.get(name, name): i for name, i in model["vocab"].items()},
        "merges": [pair for pair in model["merges"] if "".join(pair) not in hidden],
        "unk_token": hidden.get(model["unk_token"], model["unk_token"]),
    }


def encode_with(library: Tokenizer) -> Callable[[str], list[int]]:
    """Return the library's own encoding of texts, without what it adds around them."""
    return lambda text: library.encode(text, add_special_tokens=False).ids
