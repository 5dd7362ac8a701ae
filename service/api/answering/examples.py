"""The examples in /docs: requests that work unchanged with the default model, and its answers.

A service of other models shows simpler ones (`fit_to_models`).

The answers are in examples.json, which tests/write_examples.py writes.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from service.api.reading.languages import first_pair
from service.bundle.manifest import Manifest
from service.settings.settings import DEFAULT_BUNDLE

Examples = dict[str, Any]
DEFAULT = DEFAULT_BUNDLE.name
NEW = "opus-mt-en-fr"  # a model to load
SIMPLE: dict[str, dict[str, Any]] = {  # a body for most text models, by endpoint
    "/v1/decode": {"source": "Hello"},
    "/v1/attention": {"source": "Hello", "attention": {"layers": [-1]}},
    "/v1/score": {"source": "Hello", "target": "Hello"},
    "/v1/encode": {"source": "Hello", "pooling": "mean"},
    "/v1/tokenize": {"text": "Hello"},
    "/v1/detokenize": {"token_ids": [[0]]},
    "/v1/embeddings": {"input": "Hello"},  # if HEED_PROTOCOLS names it
}
ANSWERS = Path(__file__).with_name("examples.json")
INTRODUCTION = Path(__file__).with_name("introduction.md").read_text(encoding="utf-8")


def show_answers(document: dict[str, Any]) -> None:
    """Add the answers to a finished OpenAPI document, since FastAPI would drop every null. Name the
    default model in paths."""
    name_models(document, DEFAULT)
    for path, answers in json.loads(ANSWERS.read_text(encoding="utf-8")).items():
        (operation,) = document["paths"][path].values()
        content = operation["responses"]["200"]["content"]
        for name, answer in answers.items():
            streamed = isinstance(answer, list)
            media_type = content["text/event-stream" if streamed else "application/json"]
            value = "".join(map(event_text, answer)) if streamed else answer
            media_type.setdefault("examples", {})[name] = {"value": value}


def name_models(document: dict[str, Any], name: str) -> None:
    """Set the example of each name in a path: a model that is served, or one to load."""
    for path, operations in document["paths"].items():
        for operation in operations.values():
            for parameter in operation.get("parameters", []):
                if parameter["in"] == "path" and parameter["name"] != "task":
                    parameter["example"] = NEW if path.endswith("/load") else name


def fit_to_models(document: dict[str, Any], manifests: Sequence[Manifest]) -> dict[str, Any]:
    """Change and return a finished OpenAPI document, if its service has other models than the
    default one.

    If the default model is one of several, its examples name it. Without it, each endpoint gets one
    example for the first model, and no answers: its vocabulary may lack the words of the example.
    """
    names = [manifest.name for manifest in manifests]
    if names in ([DEFAULT], []):
        return document
    name_models(document, DEFAULT if DEFAULT in names else names[0])
    for path in SIMPLE.keys() & document["paths"].keys():
        body, operation = SIMPLE[path], document["paths"][path]["post"]
        shown = operation["requestBody"]["content"]["application/json"]
        if DEFAULT in names:
            for example in shown["examples"].values():
                example["value"] = {"model": DEFAULT, **example["value"]}
        else:
            value = {"model": names[0], **body, **languages_of(manifests[0], path)}
            shown["examples"] = {"simple": {"summary": f"A body for {names[0]}", "value": value}}
            remove_answers(operation)
    for path in ("/v1/models", "/v1/models/{name}", "/readyz/{name}"):
        remove_answers(document["paths"][path]["get"])
    if "/translate" in document["paths"] and (pair := first_pair(manifests)):
        operation = document["paths"]["/translate"]["post"]
        shown = operation["requestBody"]["content"]["application/json"]["examples"]
        for example in shown.values():
            example["value"] |= dict(zip(("source", "target"), pair, strict=True))
    return document


def languages_of(manifest: Manifest, path: str) -> dict[str, str]:
    """Return a language of each side that has a choice, where the endpoint takes languages."""
    if path == "/v1/detokenize":
        return {}
    sides = ("source_language", "target_language")
    codes = {side: list(manifest.languages.of(side)) for side in sides}
    return {side: found[0] for side, found in codes.items() if found}


def remove_answers(operation: dict[str, Any]) -> None:
    for content in operation["responses"]["200"]["content"].values():
        content.pop("examples", None)


def event_text(named: list[Any]) -> str:
    name, data = named
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


DECODE: Examples = {
    "words": {
        "summary": "Pronounce two words",
        "value": {"source": ["attention", "transformer"]},
    },
    "attention": {
        "summary": "Pronounce a word, with the attention of each sound to the letters",
        "value": {"source": ["attention"], "attention": {"kinds": ["cross"]}},
    },
    "beams": {
        "summary": "Search with four beams and return the best three",
        "value": {"source": "read", "beam_size": 4, "num_hypotheses": 3},
    },
    "samples": {
        "summary": "Draw three samples; the same seed gives the same samples",
        "value": {
            "source": "transformer",
            "temperature": 1.0,
            "top_p": 0.9,
            "seed": 7,
            "num_hypotheses": 3,
        },
    },
    "choice": {
        "summary": "Choose between two given pronunciations",
        "value": {
            "source": "read",
            "allowed_targets": ["R EH1 D", "R IY1 D"],
            "beam_size": 2,
            "num_hypotheses": 2,
        },
    },
    "prefix": {
        "summary": "Continue a given beginning, with the two most probable sounds at each position",
        "value": {"source": "data", "target_prefix": "D AE1", "top_log_probs": 2},
    },
    "stop": {
        "summary": "Stop after a sound, or after a sequence of sounds",
        "value": {"source": "banana", "stop": ["AE1", "AH0 N AA1"]},
    },
    "varied": {
        "summary": "Repeat no pair of sounds, generate at least four, and never generate one",
        "value": {
            "source": "banana",
            "no_repeat_ngram_size": 2,
            "repetition_penalty": 1.2,
            "min_new_tokens": 4,
            "suppress_tokens": [20],
        },
    },
    "split": {
        "summary": "Pronounce each line, and keep the lines as they are",
        "value": {"source": "  attention\n\ntransformer\n", "split": "sentences"},
    },
    "partial": {
        "summary": "Pronounce the words that the model can read, and say what is wrong with others",
        "value": {"source": ["attention", "7"], "partial": True},
    },
    "stream": {
        "summary": "Stream each sound as soon as it is generated",
        "value": {"source": "pronunciation", "stream": True},
    },
    "start": {
        "summary": "Generate at most three sounds",
        "value": {"source": "photograph", "max_new_tokens": 3},
    },
}

ATTENTION: Examples = {
    "decoded": {
        "summary": "Cross-attention of the last layer, for the pronunciation the model decodes",
        "value": {"source": "thought", "attention": {"layers": [-1]}},
    },
    "alignment": {
        "summary": "Align sounds with letters, by the mean of all layers and heads",
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
        "summary": "Attention rollout: how all layers of the encoder together mix the letters",
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
        "summary": "All three kinds of attention in one head, for a given pronunciation",
        "value": {
            "source": "read",
            "target": "R EH1 D",
            "attention": {"kinds": ["encoder", "decoder", "cross"], "layers": [0], "heads": [0]},
        },
    },
}

SCORE: Examples = {
    "pairs": {
        "summary": "Compare how probable two pronunciations are",
        "value": {"source": ["read", "read"], "target": ["R EH1 D", "R IY1 D"]},
    },
}

ENCODE: Examples = {
    "hidden": {"summary": "One vector for every letter", "value": {"source": "heed"}},
    "embedding": {
        "summary": "One vector of length 1 for each word, for comparisons",
        "value": {"source": ["color", "colour"], "pooling": "mean", "normalize": True},
    },
    "base64": {
        "summary": "The first 64 numbers of the vector of a word, as base64",
        "value": {"source": "color", "pooling": "mean", "dimensions": 64, "encoding": "base64"},
    },
}

EMBED: Examples = {
    "texts": {"summary": "One vector for each word", "value": {"input": ["color", "colour"]}},
    "base64": {
        "summary": "The first 64 numbers of the vector of a word, as base64",
        "value": {"input": "color", "dimensions": 64, "encoding_format": "base64"},
    },
}

TRANSLATE_EXAMPLES: Examples = {  # fit_to_models puts in languages of the first model that has some
    "text": {"summary": "A text", "value": {"q": "Hello.", "source": "auto", "target": "fr"}},
}

TOKENIZE: Examples = {
    "source": {"summary": "Split a word into letters", "value": {"text": "Don\u2019t"}},
    "target": {
        "summary": "Split a pronunciation into sounds",
        "value": {"text": "D OW1 N T", "side": "target"},
    },
}


DETOKENIZE: Examples = {
    "target": {
        "summary": "Turn ids into a pronunciation",
        "value": {"token_ids": [[28, 26, 11, 2]]},
    },
}


def regression_points() -> tuple[list[float], list[float]]:
    """Return 50 noisy points of y = 2 sin x + x^0.8 on [0, 5), for regressions by attention."""
    random = np.random.default_rng(0)
    x = np.sort(random.uniform(0, 5, 50)).round(2)
    y = (2 * np.sin(x) + x**0.8 + random.normal(0, 0.5, 50)).round(2)
    return x.tolist(), y.tolist()


X, Y = regression_points()
QUERIES = np.arange(0, 5, 0.1).round(1)
TRUTH = (2 * np.sin(QUERIES) + QUERIES**0.8).round(2)
REGRESSION = {"queries": QUERIES.tolist(), "keys": X, "values": Y, "truth": TRUTH.tolist()}
LEARNED_WIDTH = 2.75  # after five epochs; tests/model/export/test_mechanisms.py learns it

ATTEND: Examples = {
    "average": {
        "summary": "Regression of 50 points: their mean",
        "value": {"mechanism": "average", **REGRESSION},
    },
    "gaussian": {
        "summary": "Regression of 50 points: Gaussian kernel (Nadaraya-Watson)",
        "value": {"mechanism": "gaussian", **REGRESSION},
    },
    "learned": {
        "summary": "Regression of 50 points: Gaussian kernel, width learned in five epochs",
        "value": {"mechanism": "gaussian", "width": LEARNED_WIDTH, **REGRESSION},
    },
    "scaled_dot_product": {
        "summary": "Regression of 50 points: scaled dot products",
        "value": {"mechanism": "scaled_dot_product", **REGRESSION},
    },
    "additive": {
        "summary": "Regression of 50 points: additive attention, 2 hidden units",
        "value": {
            "mechanism": "additive",
            "weights": {"query": [[1.0], [-1.0]], "key": [[-1.0], [1.0]], "score": [-2.0, -1.0]},
            **REGRESSION,
        },
    },
    "masked": {
        "summary": "Two sequences, which see their first 2 and first 3 keys",
        "value": {
            "mechanism": "scaled_dot_product",
            "queries": [[[1.0, 0.0]], [[0.0, 1.0]]],
            "keys": [[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 0.0]]] * 2,
            "values": [[[1.0], [2.0], [3.0], [4.0]]] * 2,
            "valid_lengths": [2, 3],
        },
    },
}
