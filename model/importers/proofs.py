"""Prove a conversion: the pieces, the network and the graphs give the original's numbers."""

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from model.export.answers import Answer, torch_log_probs
from model.export.bundle import Progress
from model.export.manifest import FOLDERS
from model.export.weights import fp32_products, linear_layers
from model.importers.checkpoint import OWN, Checkpoint
from model.network.transformer import Transformer

RELATIVE, ABSOLUTE = 1e-4, 1e-4  # largest difference of a log-prob from the original's
NETWORK = "network"
ROUNDED = {"int8 graphs": "int8", "fp16 graphs": "fp16"}  # proofs that fp32 graphs do not need
PAIRS = 8  # pairs of the network's proof
SAME_BEST = 0.9  # least share of positions at which int8 has fp32's most probable token
# Largest errors of fp16's log-probs. Torch in half precision is off by 0.001 on average and 0.012
# at most for the default model; larger logits are rounded by more, those of 32 by up to 0.016.
FP16_MEAN, FP16_LARGEST = 0.01, 0.1

Pairs = Sequence[tuple[list[int], list[int]]]  # ids that the encoder and the decoder read
LogProbs = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Proof:
    """A line of the table that `convert` prints: what was compared, with what, and the result."""

    name: str
    reference: str
    result: str
    holds: bool | None  # None: not compared

    @property
    def verdict(self) -> str:
        return "not compared" if self.holds is None else "holds" if self.holds else "FAILS"


def ask_hugging_face(checkpoint: Checkpoint, pairs: Pairs) -> list[LogProbs] | Proof:
    """Return the log-probs (T, V) of Hugging Face's own model of this folder for the first pairs,
    or a proof that says why there are none.

    It is gone from memory when this returns, for ours may not fit beside it.
    """
    if checkpoint.config_name == OWN:
        return Proof(NETWORK, "-", "the model is your own: its code is not loaded", None)
    try:
        from transformers import AutoModelForSeq2SeqLM
        from transformers.utils import logging
    except ImportError:
        return Proof(NETWORK, "-", "pip install transformers compares it with Hugging Face", None)
    logging.disable_progress_bar()
    load = cast("Any", AutoModelForSeq2SeqLM).from_pretrained
    try:
        theirs = load(checkpoint.folder, local_files_only=True, dtype=torch.float32).eval()
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        reference = f"transformers {version('transformers')}"
        return Proof(NETWORK, reference, f"it cannot load the folder: {error}"[:200], False)
    log_probs = [their_log_probs(theirs, source, target) for source, target in pairs[:PAIRS]]
    del theirs
    gc.collect()  # its modules refer to each other
    return log_probs


def prove_network(model: Transformer, pairs: Pairs, theirs: Sequence[LogProbs]) -> Proof:
    """Compare log-probs with those of Hugging Face."""
    largest, holds = 0.0, True
    for (source, target), expected in zip(pairs, theirs, strict=False):
        difference = np.abs(torch_log_probs(model, source, target) - expected)
        largest = max(largest, float(difference.max()))
        holds &= bool((difference <= ABSOLUTE + RELATIVE * np.abs(expected)).all())
    reference = f"transformers {version('transformers')}"
    return Proof(NETWORK, reference, f"log-probs differ by at most {largest:.1e}", holds)


@torch.no_grad()
def their_log_probs(theirs: Any, source: list[int], target: list[int]) -> LogProbs:
    inputs = {
        "input_ids": torch.tensor([source]),
        "attention_mask": torch.ones(1, len(source), dtype=torch.long),
        "decoder_input_ids": torch.tensor([target]),
    }
    return theirs(**inputs, use_cache=False).logits[0].float().log_softmax(-1).numpy()


def prove_graphs(
    folder: Path, model: Transformer, answers: Sequence[Answer], progress: Progress
) -> list[Proof]:
    """Compare the graphs of each precision in a bundle's folder with the network's answers.

    The model may have lost its weights.
    """
    proofs: list[Proof] = []
    for precision in FOLDERS:
        if not (folder / precision).is_dir():
            continue
        name = f"{precision} graphs"
        try:
            from model.export.compare import compare
        except ModuleNotFoundError:
            proofs.append(Proof(name, "-", "pip install 'heed[cpu]' compares them", None))
            continue
        progress(f"comparing the {precision} graphs with torch")
        found = compare(folder / precision, answers)
        result = (
            f"{found.same_best:.1%} of the most probable tokens are the same; log-probs of probable"
            f" tokens differ by {found.mean:.1e} on average, by {found.largest:.1e} at most"
        )
        if precision == "int8":
            kept = len(fp32_products(model, folder / precision))
            result = f"{kept} of {len(linear_layers(model))} products stay fp32; {result}"
        holds = {
            "fp32": found.largest <= ABSOLUTE * 10,
            "int8": found.same_best >= SAME_BEST,
            "fp16": found.mean <= FP16_MEAN and found.largest <= FP16_LARGEST,
        }[precision]
        reference = f"torch {version('torch')}"
        proofs.append(Proof(name, reference, result, holds))
    return proofs


def as_text(proofs: Sequence[Proof]) -> str:
    """Return the proofs as a table in Markdown."""
    rows = [f"| {p.name} | {p.reference} | {p.result} | {p.verdict} |" for p in proofs]
    return "\n".join(["| proof | compared with | result | |", "|---|---|---|---|", *rows])


def versions(*names: str) -> dict[str, str]:
    """Return the installed versions of these packages."""
    found: dict[str, str] = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
