"""Prove a conversion: the network and the graphs give the original's numbers."""

from collections import Counter
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from model.export.bundle import Progress
from model.export.checks.answers import Answer, torch_log_probs
from model.export.files.manifest import FOLDERS
from model.export.files.weights import fp32_products, linear_layers
from model.export.precision.choose import LAYER
from model.importers.proofs.hugging_face import Reference
from model.importers.proofs.proof import NETWORK, Proof
from model.network.transformer import Transformer

if TYPE_CHECKING:  # it imports ONNX Runtime, which may not be installed
    from model.export.checks.compare import Difference

RELATIVE, ABSOLUTE = 1e-4, 1e-4  # largest difference of a log-prob from the original's
INT8 = "int8 graphs"
ROUNDED = {INT8: "int8", "fp16 graphs": "fp16"}  # proofs that fp32 graphs do not need
SAME_BEST = 0.9  # least share of positions at which int8 has fp32's most probable token
SPOILED = 0.1  # largest share of spoiled texts (`Difference`)
# Largest errors of fp16's log-probs. Torch in half precision is off by 0.001 on average and 0.012
# at most for the default model; larger logits are rounded by more, those of 32 by up to 0.016.
FP16_MEAN, FP16_LARGEST = 0.01, 0.1


def prove_network(model: Transformer, theirs: Reference, start: int) -> Proof:
    """Compare log-probs, and the likeliest tokens, with those of Hugging Face along the targets
    that its `generate` writes after `start` ids."""
    largest, holds, alike = 0.0, True, 0
    for (source, target), expected in zip(theirs.pairs, theirs.log_probs, strict=True):
        ours = torch_log_probs(model, source, target)
        difference = np.abs(ours - expected)
        largest = max(largest, float(difference.max()))
        holds &= bool((difference <= ABSOLUTE + RELATIVE * np.abs(expected)).all())
        written = slice(start - 1, None)
        alike += bool((ours.argmax(-1) == expected.argmax(-1))[written].all())
    reference = f"transformers {version('transformers')}"
    result = (
        f"{alike} of {len(theirs.pairs)} texts are decoded as by `generate`; log-probs differ by at"
        f" most {largest:.1e}"
    )
    return Proof(NETWORK, reference, result, holds)


def prove_graphs(
    folder: Path,
    model: Transformer,
    answers: Sequence[Answer],
    start: int,
    int8: str,
    progress: Progress,
) -> list[Proof]:
    """Compare the graphs of each precision in a bundle's folder with the network's answers. The
    network decoded their targets after `start` ids. `int8` says what int8 changes.

    The model may have lost its weights.
    """
    proofs: list[Proof] = []
    for precision in FOLDERS:
        if not (folder / precision).is_dir():
            continue
        name = f"{precision} graphs"
        try:
            from model.export.checks.compare import compare
            from model.export.checks.self_check import check_like_service
        except ModuleNotFoundError:
            proofs.append(Proof(name, "-", "pip install onnxruntime compares them", None))
            continue
        progress(f"comparing the {precision} graphs with torch")
        found = compare(folder / precision, answers, start)
        result, holds = describe(found), are_close(found, precision)
        if precision == "int8":
            result = f"{describe_products(model, folder / precision)}; {int8}; {result}"
        if refusal := check_like_service(folder, precision):
            result, holds = f"{result}; on random ids {refusal}", False
        proofs.append(Proof(name, f"torch {version('torch')}", result, holds))
    return proofs


def describe(found: "Difference") -> str:
    return (
        f"{found.same_texts} of {found.texts} texts are decoded to the same tokens,"
        f" {found.spoiled_texts} are spoiled; {found.same_best:.1%} of the most probable tokens"
        " are the same; log-probs of probable tokens differ by"
        f" {found.mean:.1e} on average, by {found.largest:.1e} at most"
    )


def are_close(found: "Difference", precision: str) -> bool:
    """Return whether graphs of a precision differ from the network by no more than it explains."""
    right = found.spoiled_texts <= SPOILED * found.texts
    return {
        "fp32": found.largest <= ABSOLUTE * 10 and not found.spoiled_texts,
        "int8": found.same_best >= SAME_BEST and right,
        "fp16": found.mean <= FP16_MEAN and found.largest <= FP16_LARGEST and right,
    }[precision]


def describe_products(model: Transformer, graphs: Path) -> str:
    """Say how many products of int8 graphs stay fp32, and which."""
    kept = fp32_products(model, graphs)
    listed = f" ({', '.join(places_of(kept))})" if kept else ""
    return f"{len(kept)} of {len(linear_layers(model))} products stay fp32{listed}"


def places_of(products: Sequence[str]) -> list[str]:
    """Return the places of products in a layer, each with the number of its layers."""
    found = Counter(LAYER.sub(" ", name) for name in products)
    return [f"{name} x {count}" if count > 1 else name for name, count in found.items()]


def versions(*names: str) -> dict[str, str]:
    """Return the installed versions of these packages."""
    found: dict[str, str] = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
