"""Prove a conversion: the network and the graphs give the original's numbers."""

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
from model.importers.proof import Proof
from model.importers.reference import find_fault, find_random_weights
from model.importers.texts import Texts
from model.network.config import TransformerConfig
from model.network.transformer import Transformer

RELATIVE, ABSOLUTE = 1e-4, 1e-4  # largest difference of a log-prob from the original's
NETWORK = "network"
INT8 = "int8 graphs"
ROUNDED = {INT8: "int8", "fp16 graphs": "fp16"}  # proofs that fp32 graphs do not need
PAIRS = 8  # texts of the network's proof
SAME_BEST = 0.9  # least share of positions at which int8 has fp32's most probable token
SPOILED = 0.1  # largest share of spoiled texts (`Difference`)
# Largest errors of fp16's log-probs. Torch in half precision is off by 0.001 on average and 0.012
# at most for the default model; larger logits are rounded by more, those of 32 by up to 0.016.
FP16_MEAN, FP16_LARGEST = 0.01, 0.1

Pair = tuple[list[int], list[int]]  # ids that the encoder and the decoder read
LogProbs = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Reference:
    """What Hugging Face's model decodes from some sources, and its log-probs (T, V) of it."""

    pairs: list[Pair]
    log_probs: list[LogProbs]


def ask_hugging_face(
    checkpoint: Checkpoint, texts: Texts, config: TransformerConfig
) -> Reference | Proof:
    """Return what Hugging Face's own model of this folder decodes from the first texts, or a proof
    that says why there is nothing.

    The model is gone from memory when this returns, for ours may not fit beside it.
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
    reference = f"transformers {version('transformers')}"
    if fault := find_fault(checkpoint, version("transformers")):
        return Proof(NETWORK, reference, fault, None)
    options: dict[str, Any] = {"local_files_only": True, "output_loading_info": True}
    try:
        theirs, found = load(checkpoint.folder, dtype=torch.float32, **options)
    except Exception as error:  # noqa: BLE001 - its errors have no class in common
        said = " ".join(str(error).split())
        return Proof(NETWORK, reference, f"it cannot load the folder: {said}"[:200], False)
    if fault := find_random_weights(found["missing_keys"]):
        return Proof(NETWORK, reference, fault, None)
    theirs.eval()
    if checkpoint.rounding is not None:
        round_like(theirs, checkpoint.rounding)
    pairs = generate(theirs, texts, config)
    log_probs = [their_log_probs(theirs, source, target) for source, target in pairs]
    del theirs
    gc.collect()  # its modules refer to each other
    return Reference(pairs, log_probs)


@torch.no_grad()
def round_like(theirs: Any, dtype: torch.dtype) -> None:
    """Round the weights that `--weights` rounds: all but computed position tables."""
    fixed = {name for name, each in theirs.named_parameters() if not each.requires_grad}
    for name, tensor in theirs.state_dict().items():
        if name not in fixed and tensor.is_floating_point():
            tensor.copy_(tensor.to(dtype))


@torch.no_grad()
def generate(theirs: Any, texts: Texts, config: TransformerConfig) -> list[Pair]:
    """Decode the first texts greedily with `generate`, without the checkpoint's own options.

    As in `decode`, a target has no eos, nor the last token of a text that is cut off.
    """
    from transformers import GenerationConfig

    theirs.generation_config = GenerationConfig(
        do_sample=False,
        max_length=len(texts.start) + texts.longest - 1,
        pad_token_id=config.pad_id,
        eos_token_id=config.eos_id,
        decoder_start_token_id=texts.start[0],
    )
    if texts.longest == 1:  # no room for a token
        return [(source, texts.start) for source in texts.sources[:PAIRS]]
    pairs: list[Pair] = []
    for source in texts.sources[:PAIRS]:
        start = torch.tensor([texts.start])
        (found,) = theirs.generate(torch.tensor([source]), decoder_input_ids=start).tolist()
        written = found[len(texts.start) :]
        end = written.index(config.eos_id) if config.eos_id in written else len(written)
        pairs.append((source, [*texts.start, *written[:end]]))
    return pairs


def prove_network(model: Transformer, theirs: Reference) -> Proof:
    """Compare log-probs with those of Hugging Face."""
    largest, holds = 0.0, True
    for (source, target), expected in zip(theirs.pairs, theirs.log_probs, strict=True):
        difference = np.abs(torch_log_probs(model, source, target) - expected)
        largest = max(largest, float(difference.max()))
        holds &= bool((difference <= ABSOLUTE + RELATIVE * np.abs(expected)).all())
    reference = f"transformers {version('transformers')}"
    result = f"log-probs of {len(theirs.pairs)} decoded texts differ by at most {largest:.1e}"
    return Proof(NETWORK, reference, result, holds)


@torch.no_grad()
def their_log_probs(theirs: Any, source: list[int], target: list[int]) -> LogProbs:
    inputs = {
        "input_ids": torch.tensor([source]),
        "attention_mask": torch.ones(1, len(source), dtype=torch.long),
        "decoder_input_ids": torch.tensor([target]),
    }
    return theirs(**inputs, use_cache=False).logits[0].float().log_softmax(-1).numpy()


def prove_graphs(
    folder: Path, model: Transformer, answers: Sequence[Answer], start: int, progress: Progress
) -> list[Proof]:
    """Compare the graphs of each precision in a bundle's folder with the network's answers, whose
    targets the network decoded after `start` ids.

    The model may have lost its weights.
    """
    proofs: list[Proof] = []
    for precision in FOLDERS:
        if not (folder / precision).is_dir():
            continue
        name = f"{precision} graphs"
        try:
            from model.export.compare import compare
            from model.export.self_check import check_like_service
        except ModuleNotFoundError:
            proofs.append(Proof(name, "-", "pip install 'heed[cpu]' compares them", None))
            continue
        progress(f"comparing the {precision} graphs with torch")
        found = compare(folder / precision, answers, start)
        result = (
            f"{found.same_texts} of {found.texts} texts are decoded to the same tokens,"
            f" {found.spoiled_texts} are spoiled; {found.same_best:.1%} of the most probable tokens"
            " are the same; log-probs of probable tokens differ by"
            f" {found.mean:.1e} on average, by {found.largest:.1e} at most"
        )
        if precision == "int8":
            kept = len(fp32_products(model, folder / precision))
            result = f"{kept} of {len(linear_layers(model))} products stay fp32; {result}"
        right = found.spoiled_texts <= SPOILED * found.texts
        holds = {
            "fp32": found.largest <= ABSOLUTE * 10 and not found.spoiled_texts,
            "int8": found.same_best >= SAME_BEST and right,
            "fp16": found.mean <= FP16_MEAN and found.largest <= FP16_LARGEST and right,
        }[precision]
        if refusal := check_like_service(folder, precision):
            result, holds = f"{result}; on random ids {refusal}", False
        reference = f"torch {version('torch')}"
        proofs.append(Proof(name, reference, result, holds))
    return proofs


def versions(*names: str) -> dict[str, str]:
    """Return the installed versions of these packages."""
    found: dict[str, str] = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
