"""Damaged and hostile tokenizers."""

import base64
from functools import partial

from tests.service.mutations.edit import SOURCE, TEXTS, cut, edit_json, put, write


def tokenizer(*path_and_value):
    return partial(edit_json, SOURCE, put(*path_and_value))


def charsmap(content):
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(content).decode()}


def nested(depth):
    normalizer = {"type": "Lowercase"}
    for _ in range(depth):
        normalizer = {"type": "Sequence", "normalizers": [normalizer]}
    return normalizer


def split(pattern):
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


WORDS = {"<pad>": 0, "<bos>": 1, "<eos>": 2, "<unk>": 3, "blue": 4, "green": 5, "one": 6, "red": 7}
WORDS |= {"three": 8}
TOKENIZERS = {
    **{f"tokenizer {name}": partial(write, SOURCE, text) for name, text in TEXTS.items()},
    "tokenizer cut": partial(cut, SOURCE, 0.5),
    "tokenizer of 65 MiB": partial(write, SOURCE, b" " * (65 << 20)),
    **{
        f"tokenizer's id {i}": tokenizer("model", "vocab", {**WORDS, "two": i})
        for i in (-1, 10, 2**31, 2**32 - 1, 2**32, 1.5)
    },
    "too many tokens": tokenizer("model", "vocab", {**WORDS, "two": 9, "four": 10}),
    "no model": tokenizer("model", None),
    "unknown model": tokenizer("model", "type", "Evil"),
    "broken charsmap": tokenizer("normalizer", charsmap(b"\0\0\0")),
    "deep normalizer": tokenizer("normalizer", nested(90)),
    "wrong regex": tokenizer("pre_tokenizer", split("[")),
    "deep regex": tokenizer("pre_tokenizer", split("(" * 5000 + ")" * 5000)),
    "endless padding": tokenizer(
        "padding",
        {
            "strategy": {"Fixed": 10**9},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "<pad>",
        },
    ),
    "truncation": tokenizer(
        "truncation",
        {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 5},
    ),
}
