"""The requests shown in /docs, which work as they stand with the default model; and what it answers
(examples.json, written by tests/write_examples.py)."""

import json
from pathlib import Path
from typing import Any

import numpy as np

Examples = dict[str, Any]
ANSWERS = Path(__file__).with_name("examples.json")


def show_answers(document: dict[str, Any]) -> None:
    """Adds the answers to an OpenAPI document, in which FastAPI would leave out each null."""
    for path, answers in json.loads(ANSWERS.read_text(encoding="utf-8")).items():
        (operation,) = document["paths"][path].values()
        content = operation["responses"]["200"]["content"]
        for name, answer in answers.items():
            streamed = isinstance(answer, list)
            form = content["text/event-stream" if streamed else "application/json"]
            value = "".join(map(event, answer)) if streamed else answer
            form.setdefault("examples", {})[name] = {"value": value}


def event(named: list[Any]) -> str:
    name, data = named
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


DECODE: Examples = {
    "words": {
        "summary": "Pronounce two words",
        "value": {"source": ["attention", "transformer"]},
    },
    "attention": {
        "summary": "… and show which letters each sound comes from",
        "value": {"source": ["attention"], "attention": {"kinds": ["cross"]}},
    },
    "beams": {
        "summary": "The three best of four beams",
        "value": {"source": "read", "beam_size": 4, "num_hypotheses": 3},
    },
    "samples": {
        "summary": "Three samples, the same for the same seed",
        "value": {
            "source": "transformer",
            "temperature": 1.0,
            "top_p": 0.9,
            "seed": 7,
            "num_hypotheses": 3,
        },
    },
    "choice": {
        "summary": "Which of these is it?",
        "value": {
            "source": "read",
            "allowed_targets": ["R EH1 D", "R IY1 D"],
            "beam_size": 2,
            "num_hypotheses": 2,
        },
    },
    "prefix": {
        "summary": "It begins like this; show the two likeliest sounds at each step",
        "value": {"source": "data", "target_prefix": "D AE1", "top_log_probs": 2},
    },
    "stop": {
        "summary": "Only up to a sound, or to a sequence of them",
        "value": {"source": "banana", "stop": ["AE1", "AH0 N AA1"]},
    },
    "varied": {
        "summary": "No pair of sounds twice, four sounds at least, one never, few again",
        "value": {
            "source": "banana",
            "no_repeat_ngram_size": 2,
            "repetition_penalty": 1.2,
            "min_new_tokens": 4,
            "suppress_tokens": [20],
        },
    },
    "stream": {
        "summary": "Sounds as they come",
        "value": {"source": "pronunciation", "stream": True},
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
    "alignment": {
        "summary": "Which letters belong to each sound, by the mean of all layers and heads",
        "value": {
            "source": "thought",
            "attention": {
                "reduce_heads": "mean",
                "reduce_layers": "mean",
                "alignment": "argmax",
                "decimals": 2,
            },
        },
    },
    "rollout": {
        "summary": "How the encoder's layers together mix the letters",
        "value": {
            "source": "thought",
            "attention": {
                "kinds": ["encoder"],
                "reduce_heads": "mean",
                "reduce_layers": "rollout",
                "decimals": 2,
            },
        },
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

SCORE: Examples = {
    "pairs": {
        "summary": "How probable are these two pronunciations?",
        "value": {"source": ["read", "read"], "target": ["R EH1 D", "R IY1 D"]},
    },
}

ENCODE: Examples = {
    "hidden": {"summary": "A vector for every letter", "value": {"source": "heed"}},
    "embedding": {
        "summary": "One vector of length 1 for each word",
        "value": {"source": ["color", "colour"], "pooling": "mean", "normalize": True},
    },
    "base64": {
        "summary": "… its first 64 dimensions, as base64",
        "value": {"source": "color", "pooling": "mean", "dimensions": 64, "encoding": "base64"},
    },
}

TOKENIZE: Examples = {
    "source": {"summary": "Letters of a word", "value": {"text": "Don\u2019t"}},
    "target": {
        "summary": "Sounds of a pronunciation",
        "value": {"text": "D OW1 N T", "side": "target"},
    },
}


DETOKENIZE: Examples = {
    "target": {
        "summary": "Sounds of ids",
        "value": {"token_ids": [[28, 26, 11, 2]]},
    },
}


def regression_points() -> tuple[list[float], list[float]]:
    """50 noisy points of y = 2 sin x + x^0.8 on [0, 5): a regression that attention can do."""
    random = np.random.default_rng(0)
    x = np.sort(random.uniform(0, 5, 50)).round(2)
    y = (2 * np.sin(x) + x**0.8 + random.normal(0, 0.5, 50)).round(2)
    return x.tolist(), y.tolist()


X, Y = regression_points()
QUERIES = np.arange(0, 5, 0.1).round(1)
TRUTH = (2 * np.sin(QUERIES) + QUERIES**0.8).round(2)
REGRESSION = {"queries": QUERIES.tolist(), "keys": X, "values": Y, "truth": TRUTH.tolist()}
LEARNED_WIDTH = 2.75  # after five epochs; tests/model/test_pooling.py learns it

ATTEND: Examples = {
    "average": {
        "summary": "Regression of 50 points: the mean of all",
        "value": {"mechanism": "average", **REGRESSION},
    },
    "gaussian": {
        "summary": "… by a Gaussian kernel (Nadaraya-Watson)",
        "value": {"mechanism": "gaussian", **REGRESSION},
    },
    "learned": {
        "summary": "… with the width that gradient descent finds in five epochs",
        "value": {"mechanism": "gaussian", "width": LEARNED_WIDTH, **REGRESSION},
    },
    "scaled_dot_product": {
        "summary": "… by scaled dot products",
        "value": {"mechanism": "scaled_dot_product", **REGRESSION},
    },
    "additive": {
        "summary": "… by additive attention with a hidden width of 2",
        "value": {
            "mechanism": "additive",
            "weights": {"query": [[1.0], [-1.0]], "key": [[-1.0], [1.0]], "score": [-2.0, -1.0]},
            **REGRESSION,
        },
    },
    "masked": {
        "summary": "Two sequences of which 2 and 3 keys are valid",
        "value": {
            "mechanism": "scaled_dot_product",
            "queries": [[[1.0, 0.0]], [[0.0, 1.0]]],
            "keys": [[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 0.0]]] * 2,
            "values": [[[1.0], [2.0], [3.0], [4.0]]] * 2,
            "valid_lengths": [2, 3],
        },
    },
}
