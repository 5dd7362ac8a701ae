"""Torch's answers to pairs of texts, kept small, so that the model need not stay in memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from model.network.transformer import Transformer

Array = NDArray[Any]
LIKELY = 1e-3  # least probability, as torch computes it, of a token whose error counts


@dataclass(frozen=True, slots=True)
class Answer:
    """Ids that the encoder and the decoder read, and torch's best token per decoder input (T,).

    `places` are the positions and ids (each N) of likely tokens, `log_probs` (N,) their values: at
    most 1,000 per position.
    """

    source: list[int]
    target: list[int]
    best: Array
    places: tuple[Array, ...]
    log_probs: Array


def answer(model: Transformer, pairs: Sequence[tuple[list[int], list[int]]]) -> list[Answer]:
    answers: list[Answer] = []
    for source, target in pairs:
        log_probs = torch_log_probs(model, source, target)
        likely = np.nonzero(log_probs >= np.log(LIKELY))
        answers.append(Answer(source, target, log_probs.argmax(-1), likely, log_probs[likely]))
    return answers


@torch.no_grad()
def torch_log_probs(model: Transformer, source: list[int], target: list[int]) -> Array:
    """Return (T, V) after each decoder input of `target` (T,)."""
    lengths = torch.tensor([len(source)]), torch.tensor([len(target)])
    return model(torch.tensor([source]), lengths[0], torch.tensor([target]), lengths[1])[0].numpy()
