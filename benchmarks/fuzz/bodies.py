"""Bodies that strangers may send: valid-looking ones with odd texts, odd values, and large ones."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.load.load import WORDS

ENDPOINTS = ("decode", "score", "attention", "encode", "tokenize", "detokenize", "attend")
ODD_VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    0.5,
    1e308,
    10**30,
    10**400,
    float("nan"),
    float("inf"),
    "",
    "\0",
    "\ud800",
    "\udfff",
    "a" * 5000,
    [],
    [[]],
    [[[]]],
    [0],
    [-1],
    [1e400],
    {},
    {"": 0},
    ["heed", 5],
    [["heed"]],
    [[5], "heed"],
    [[10**20]],
    ["x"] * 300,
    [None],
    "\U0010ffff",
]
SCRIPTS = [
    (0x20, 0x7F),
    (0xA0, 0x250),
    (0x300, 0x370),
    (0x370, 0x530),
    (0x590, 0x780),
    (0x900, 0xE00),
    (0xE00, 0x1000),
    (0x1200, 0x1380),
    (0x200B, 0x2070),
    (0x3040, 0x3100),
    (0x4E00, 0x4F00),
    (0xAC00, 0xAD00),
    (0xFE00, 0xFE10),
    (0xFFF0, 0x10000),
    (0x1F300, 0x1F650),
    (0xE0000, 0xE0080),
    (0, 0xA0),
    (0x2028, 0x202F),
    (0x2066, 0x206A),
    (0x85, 0x86),
    (0x10FFF0, 0x110000),
]
OPTIONS: dict[str, list[Any]] = {
    "beam_size": [1, 2, 3, 8, 64],
    "num_hypotheses": [1, 2, 5],
    "temperature": [0, 0.3, 1, 100],
    "top_k": [1, 5, 1000],
    "top_p": [1e-9, 0.5, 1],
    "seed": [0, 7, (1 << 63) - 1],
    "max_new_tokens": [1, 3, 64],
    "min_new_tokens": [0, 2, 5],
    "length_penalty": [0, 1, -3.5, 5],
    "early_stopping": [True, False],
    "repetition_penalty": [0.01, 1.3, 2],
    "no_repeat_ngram_size": [0, 1, 3],
    "encoder_repetition_penalty": [0.5, 1.3],
    "encoder_no_repeat_ngram_size": [0, 1, 3],
    "suppress_tokens": [[], [4, 5], list(range(30)), [4, [5, 6], [7]]],
    "allowed_targets": [["HH IY1 D", "HH EH1 D"], [""]],
    "target_prefix": ["HH", [28], ""],
    "stop": ["IY1", ["D", 26], []],
    "top_log_probs": [0, 3, 20],
    "split": ["none", "sentences"],
    "stream": [True, False],
}
SELECTIONS: dict[str, list[Any]] = {
    "kinds": [["cross"], ["encoder"], ["decoder"], ["encoder", "decoder", "cross"]],
    "layers": ["all", [0], [-1], [1, 0]],
    "heads": ["all", [0], [-1, 0]],
    "reduce_heads": ["none", "mean", "max"],
    "reduce_layers": ["none", "mean", "max", "rollout"],
    "rows": [[0, 2], [-1, 9], [5, 6], [50, 60]],
    "alignment": ["argmax", "threshold", "model"],
    "threshold": [0.1, 1],
    "decimals": [0, 3, 9],
}


def to_json(body: Any) -> bytes:
    """Return JSON in which half a surrogate pair is escaped, as is everything beyond ASCII."""
    return json.dumps(body).encode()


def text(chance: random.Random) -> str:
    """Return a word, a word with odd characters in it, or a text of one or several scripts."""
    word = chance.choice(WORDS)
    if chance.random() < 0.7:
        return word
    ranges = chance.choices(SCRIPTS, k=chance.randint(1, 3))
    odd = [chr(chance.randrange(*chance.choice(ranges))) for _ in range(chance.randint(1, 12))]
    if chance.random() < 0.6:
        place = chance.randint(0, len(word))
        return word[:place] + "".join(odd[:2]) + word[place:]
    return "".join(odd) * chance.choice([1, 1, 1, 40])


def some(chance: random.Random, options: dict[str, list[Any]], most: int) -> dict[str, Any]:
    names = chance.sample(list(options), chance.randint(0, most))
    return {name: chance.choice(options[name]) for name in names}


def numbers(chance: random.Random, depth: int, shape: Sequence[int]) -> Any:
    if depth:
        return [numbers(chance, depth - 1, shape[1:]) for _ in range(shape[0])]
    return chance.choice([0, 1.5, -2, 1e-30, 3.4e38, chance.gauss(0, 1)])


def attend_body(chance: random.Random) -> dict[str, Any]:
    """Return queries, keys and values whose shapes mostly agree."""
    depth, (b, t, s, d) = chance.randint(1, 3), (chance.randint(1, 4) for _ in range(4))
    lead = [b] if depth == 3 else []
    body = {
        name: numbers(chance, depth, [*lead, length, d])
        for name, length in (("queries", t), ("keys", s), ("values", s))
    }
    extra = {
        "truth": [numbers(chance, 1, [t])],
        "causal": [True, False],
        "valid_lengths": [[s] * b, [0] * b],
        "width": [0.5, 0, -1e30],
    }
    mechanisms = ["average", "gaussian", "scaled_dot_product", "additive"]
    return {"mechanism": chance.choice(mechanisms), **body, **some(chance, extra, 2)}


def valid_body(chance: random.Random, name: str) -> dict[str, Any]:
    """Return a body of the endpoint that is valid, unless its options contradict each other."""
    if name == "attend":
        return attend_body(chance)
    if name == "detokenize":
        ids = [[chance.randint(0, 60) for _ in range(chance.randint(1, 9))] for _ in range(2)]
        return {"token_ids": ids, **some(chance, {"side": ["source", "target"]}, 1)}
    sources: Any = [text(chance) for _ in range(chance.randint(1, 3))]
    if name == "tokenize":
        return {"text": sources}
    if chance.random() < 0.8:
        sources = sources[0]
    selection = some(chance, SELECTIONS, 3)
    match name:
        case "score":
            target = "HH IY1 D" if isinstance(sources, str) else ["D"] * len(sources)
            return {"source": sources, "target": target}
        case "encode":
            pooling = {"pooling": ["none", "mean", "max", "first", "last"], "dimensions": [1, 64]}
            return {"source": sources, **some(chance, pooling, 2)}
        case "attention":
            options = {key: OPTIONS[key] for key in ("beam_size", "temperature", "max_new_tokens")}
            return {"source": sources, "attention": selection, **some(chance, options, 1)}
        case _:
            with_attention = {"attention": selection} if chance.random() < 0.3 else {}
            return {"source": sources, **with_attention, **some(chance, OPTIONS, 4)}


def odd_body(chance: random.Random, name: str) -> bytes:
    """Return a body with an odd value, an odd key, many odd keys, or a key twice."""
    body = valid_body(chance, name)
    key = chance.choice([*body, *OPTIONS, "model", "attention", "é" * 3000, "\0" * 99, "a~/b"])
    value = chance.choice(ODD_VALUES)
    if key == "attention" and chance.random() < 0.7:
        value = {chance.choice([*SELECTIONS, "\1" * 99]): value}
    if chance.random() < 0.1:
        odd = chance.choice(["\1", "\u2028", "x", "\U0001f600"])
        body |= {f"{i}{odd * 99}": value for i in range(chance.randint(2, 12))}
    content = to_json({**body, key: value})
    if chance.random() < 0.2:
        content = content[:-1] + b"," + to_json({key: chance.choice(ODD_VALUES)})[1:]
    return content


def large_body(chance: random.Random) -> bytes:
    """Return a body of many lists, fields, digits or characters, up to beyond the limit."""
    size = chance.choice([10_000, 100_000, 1_040_000, 1_100_000])
    piece = chance.choice(
        [b"[],", b"[9],", b'"",', b"1,", b"{},", b"0.1,", b"null,", b'"\\ud800",']
    )
    contents: list[Callable[[], bytes]] = [
        lambda: b'{"source":[%b1]}' % (piece * (size // len(piece))),
        lambda: b'{"source":[[%b1]]}' % (piece * (size // len(piece))),
        lambda: b"[" * size,
        lambda: b'{"source":%b1%b}' % (b"[" * (size // 2), b"]" * (size // 2)),
        lambda: b'{"a":' * (size // 5),
        lambda: (
            b'{"source":"%b"}' % (chance.choice([b" ", b"a", b"[", b"A. ", b"\\n"]) * (size // 3))
        ),
        lambda: b'{"source":"a","seed":%b}' % (b"9" * size),
        lambda: to_json({"source": "a", **{f"f{i}": i for i in range(size // 12)}}),
        lambda: to_json({"source": "a", "x" * size: 1}),
        lambda: b'{"source":"a","split":"sentences","stop":[%b1]}' % (b"1," * (size // 2)),
    ]
    return chance.choice(contents)()
