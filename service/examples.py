"""The requests shown in /docs. Each works as it stands with the default model."""

from typing import Any

Examples = dict[str, Any]

DECODE: Examples = {
    "words": {
        "summary": "Pronounce two words",
        "value": {"source": ["attention", "transformer"]},
    },
    "attention": {
        "summary": "… and show which letters each sound comes from",
        "value": {"source": ["attention"], "attention": {"kinds": ["cross"]}},
    },
    "start": {
        "summary": "Only the first three sounds",
        "value": {"source": "photograph", "max_new_tokens": 3},
    },
}

ATTENTION: Examples = {
    "decoded": {
        "summary": "Cross-attention of the last layer, for what the model decodes",
        "value": {"source": "thought", "attention": {"layers": [-1]}},
    },
    "given": {
        "summary": "All three kinds, one head, for a pronunciation you give",
        "value": {
            "source": "read",
            "target": "R EH1 D",
            "attention": {"kinds": ["encoder", "decoder", "cross"], "layers": [0], "heads": [0]},
        },
    },
}

ENCODE: Examples = {
    "hidden": {"summary": "A vector for every letter", "value": {"source": "heed"}},
    "embedding": {
        "summary": "One vector of length 1 for each word",
        "value": {"source": ["color", "colour"], "pooling": "mean", "normalize": True},
    },
}

TOKENIZE: Examples = {
    "source": {"summary": "Letters of a word", "value": {"text": "Don\u2019t"}},
    "target": {
        "summary": "Sounds of a pronunciation",
        "value": {"text": "D OW1 N T", "side": "target"},
    },
}
