"""Read a tokenizer.json, which transformers 5 saves in place of a sentencepiece model."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, ByteLevelBPETokenizer, Regex, Tokenizer, decoders
from tokenizers.pre_tokenizers import ByteLevel

from model.importers.files.reading import read
from model.importers.tokenizers.added_tokens import HIDDEN, Lexicon
from model.importers.tokenizers.pieces import HIDDEN_END, Converted
from model.network.config import InputError

MODELS = ("Unigram", "BPE")


def open_library(path: Path) -> Tokenizer:
    """Read the file without the ids, padding and truncation that it may add to texts."""
    tokenizer = open_whole(path)
    tokenizer.post_processor = None
    return tokenizer


def open_whole(path: Path) -> Tokenizer:
    """Read the file without padding and truncation."""
    content = read(path)
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises no other class
        raise InputError(f"{path} is not a file of the tokenizers library: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def names_of(library: Tokenizer, path: Path) -> list[str]:
    """Return the names of the model's own vocabulary, by id; "" where it has none.

    Raise InputError if the model is neither Unigram nor BPE.
    """
    model: dict[str, Any] = json.loads(library.to_str())["model"]
    if model["type"] not in MODELS:
        raise InputError(
            f"{path} has a model of type {model['type']}: Heed reads {' and '.join(MODELS)}"
        )
    if model["type"] == "Unigram":
        return [name for name, _ in model["vocab"]]
    ids: dict[int, str] = {i: name for name, i in model["vocab"].items()}
    return [ids.get(i, "") for i in range(max(ids) + 1)]


def with_tokens(
    library: Tokenizer, lexicon: Lexicon, prefix_space: bool | None = None
) -> Tokenizer:
    """Return the library with all tokens of the lexicon under the ids that files give them: the
    library gives new tokens the next free ones. `prefix_space` changes this flag of byte-level BPE.
    """
    rebuilt = rebuild(library, lexicon.names, [*lexicon.tokens.values()], lexicon.size)
    if prefix_space is not None and isinstance(rebuilt.pre_tokenizer, ByteLevel):
        splitter = rebuilt.pre_tokenizer  # a copy, which keeps the other flags
        splitter.add_prefix_space = prefix_space
        rebuilt.pre_tokenizer = splitter
    return rebuilt


def convert_library(
    library: Tokenizer, lexicon: Lexicon, languages: Collection[str] = ()
) -> Converted:
    """Return a tokenizer with the same ids. It reads typed structural tokens, such as "</s>", and
    the tokens of `languages` as text: their names are hidden as in `pieces`.

    Its unknown token is not special: a letter that the vocabulary lacks is read as unknown.
    """
    unknown = unknown_of(json.loads(library.to_str())["model"])
    structural = {*languages, *lexicon.structural}
    names = [
        name + HIDDEN if i < lexicon.size and (name in structural or name == unknown) else name
        for i, name in enumerate(lexicon.names)
    ]
    tokens = [lexicon.stored(i) for i in lexicon.tokens if lexicon.names[i] != unknown]
    listed = {token.content for token in tokens}
    tokens += [
        AddedToken(name + HIDDEN, normalized=False, special=True)
        for name in languages  # those that are pieces
        if name + HIDDEN not in listed
    ]
    tokenizer = rebuild(library, names, tokens, lexicon.size)
    tokenizer.encode_special_tokens = True
    if tokenizer.decoder is not None:
        visible = decoders.Replace(Regex(HIDDEN_END), "")
        tokenizer.decoder = decoders.Sequence([visible, tokenizer.decoder])
    return Converted(tokenizer, compose=False, dropped=0)


def unknown_of(model: Mapping[str, Any]) -> str | None:
    """Return the name of the unknown token; None if the model has none, as byte-level BPE."""
    if model["type"] != "Unigram":
        return model["unk_token"]
    return None if model["unk_id"] is None else model["vocab"][model["unk_id"]][0]


def rebuild(
    library: Tokenizer, names: Sequence[str], tokens: Collection[AddedToken], size: int
) -> Tokenizer:
    """Return the library with other names of the first `size` ids, without the merges of names that
    are gone, and with these added tokens alone."""
    document = json.loads(library.to_str())
    model: dict[str, Any] = document["model"]
    if model["type"] == "Unigram":
        scores = [score for _, score in model["vocab"][:size]]
        model["vocab"] = list(zip(names[:size], scores, strict=True))
    else:
        old = {i: name for name, i in model["vocab"].items()}
        gone = {name for i, name in old.items() if i >= size or names[i] != name}
        model["vocab"] = {name: i for i, name in enumerate(names[:size])}
        model["merges"] = [pair for pair in model["merges"] if not gone & {*pair, "".join(pair)}]
        if (unknown := model["unk_token"]) in gone:
            model["unk_token"] = names[next(i for i, name in old.items() if name == unknown)]
    document["added_tokens"] = []
    rebuilt = Tokenizer.from_str(json.dumps(document))
    rebuilt.add_tokens([*tokens])
    return rebuilt


def encode_with(library: Tokenizer | ByteLevelBPETokenizer) -> Callable[[str], list[int]]:
    """Return the library's own encoding of texts, without what it adds around them."""
    return lambda text: library.encode(text, add_special_tokens=False).ids
