"""Blocks of attention, and the texts of their pictures."""

import base64
import io

import numpy as np
from PIL import Image

from service.text.tokens import Token

SVG = "{http://www.w3.org/2000/svg}"


def block_of(weights, rows, columns):
    return {
        "kind": "cross",
        "layers": [*range(weights.shape[0] if weights.ndim == 4 else 1)],
        "heads": [*range(weights.shape[-3] if weights.ndim > 2 else 1)],
        "axes": [*["layer", "head"][4 - weights.ndim :], "target", "source"],
        "rows": [Token(text, 4, 0, 1) for text in rows],
        "columns": [Token(text, 4, 0, 1) for text in columns],
        "data": weights,
    }


def weights_of(*shape):
    weights = np.random.default_rng(0).random(shape).astype(np.float32) ** 4
    return weights / weights.sum(-1, keepdims=True)


def decoded(image):
    """The pixels of an SVG's image."""
    content = base64.b64decode(image.get("href").removeprefix("data:image/png;base64,"))
    return np.array(Image.open(io.BytesIO(content)))


def texts_of(root):
    return [text.text or "" for text in root.findall(f"{SVG}text")]
