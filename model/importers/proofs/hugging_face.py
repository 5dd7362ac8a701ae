"""Ask Hugging Face's own model of a checkpoint, the oracle of the network's proof."""

import gc
from collections.abc import Callable, Collection
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from model.data.pairs import pad
from model.export.checks.samples import IdPair
from model.importers.checkpoint import MARIAN, OWN, Checkpoint
from model.importers.proofs.proof import NETWORK, Proof
from model.importers.proofs.texts import Texts
from model.importers.proofs.versions import find_fault, find_random_weights
from model.network.config import TransformerConfig

PROVED_PAIRS = 8  # texts of the network's proof
UNKNOWN = {  # why there is no model of Hugging Face's to ask, by what describes the weights
    OWN: "the model is your own: its code is not loaded",
    MARIAN: "Marian is not called: give its answers as --expected",
}
LogProbs = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Reference:
    """Sources with the targets that Hugging Face's model decodes, and its log-probs (T, V)."""

    pairs: list[IdPair]
    log_probs: list[LogProbs]


def ask_hugging_face(
    checkpoint: Checkpoint,
    texts: Texts,
    config: TransformerConfig,
    progress: Callable[[str], None],
) -> Reference | Proof:
    """Return what Hugging Face's own model of this folder decodes from the first texts, or a proof
    that says why there is nothing.

    The model is gone from memory when this returns, for ours may not fit with it.
    """
    if said := UNKNOWN.get(checkpoint.config_name):
        return Proof(NETWORK, "-", said, None)
    progress("comparing the network with Hugging Face's")
    try:
        from transformers import AutoModelForSeq2SeqLM, GenerationConfig
        from transformers.utils import logging
    except ImportError:
        return Proof(NETWORK, "-", "pip install transformers compares it with Hugging Face", None)
    logging.disable_progress_bar()
    load = cast("Any", AutoModelForSeq2SeqLM).from_pretrained
    reference = f"transformers {version('transformers')}"
    if fault := find_fault(checkpoint, version("transformers")):
        return Proof(NETWORK, reference, fault, None)
    options: dict[str, Any] = {"local_files_only": True, "output_loading_info": True}
    # Without the checkpoint's own options, which `generate` must not follow: it refuses odd ones.
    options["generation_config"] = GenerationConfig()
    try:
        theirs, found = load(checkpoint.folder, dtype=torch.float32, **options)
    except Exception as error:  # noqa: BLE001 - its errors have no class in common
        return failed(reference, "it cannot load the folder", error)
    if fault := find_random_weights(found["missing_keys"]):
        return Proof(NETWORK, reference, fault, None)
    theirs.eval()
    if checkpoint.rounding is not None:
        round_like(theirs, checkpoint.rounding, checkpoint.names)
    try:
        pairs = generate(theirs, texts, config)
        log_probs = [their_log_probs(theirs, source, target) for source, target in pairs]
    except Exception as error:  # noqa: BLE001 - whatever its code raises, ours may still be right
        return failed(reference, "it loads the folder but cannot run it", error)
    finally:
        del theirs
        gc.collect()  # its modules refer to each other
    return Reference(pairs, log_probs)


def failed(reference: str, why: str, error: Exception) -> Proof:
    """Return a failed proof, in one line."""
    said = " ".join(str(error).split())
    return Proof(NETWORK, reference, f"{why}: {said}"[:200], False)


@torch.no_grad()
def round_like(theirs: Any, dtype: torch.dtype, held: Collection[str]) -> None:
    """Round the weights that `--weights` rounds: all but position tables that no file holds."""
    for name, tensor in theirs.state_dict().items():
        computed = "embed_positions" in name and name not in held
        if tensor.is_floating_point() and not computed:
            tensor.copy_(tensor.to(dtype))


@torch.no_grad()
def generate(theirs: Any, texts: Texts, config: TransformerConfig) -> list[IdPair]:
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
        # transformers 5 gives a decoder with more layers than the encoder too small a cache
        use_cache=config.num_decoder_layers <= config.num_encoder_layers,
    )
    if texts.longest == 1:  # no room for a token
        return [(source, texts.start) for source in texts.sources[:PROVED_PAIRS]]
    sources = texts.sources[:PROVED_PAIRS]
    ids, lengths = pad(sources, config.pad_id)
    found = theirs.generate(
        ids,
        attention_mask=(torch.arange(ids.size(1)) < lengths.unsqueeze(1)).long(),
        decoder_input_ids=torch.tensor([texts.start] * len(sources)),
    )[:, len(texts.start) :].tolist()
    ends = [row.index(config.eos_id) if config.eos_id in row else len(row) for row in found]
    targets = [[*texts.start, *row[:end]] for row, end in zip(found, ends, strict=True)]
    return list(zip(sources, targets, strict=True))


@torch.no_grad()
def their_log_probs(theirs: Any, source: list[int], target: list[int]) -> LogProbs:
    inputs = {
        "input_ids": torch.tensor([source]),
        "attention_mask": torch.ones(1, len(source), dtype=torch.long),
        "decoder_input_ids": torch.tensor([target]),
    }
    return theirs(**inputs, use_cache=False).logits[0].float().log_softmax(-1).numpy()
