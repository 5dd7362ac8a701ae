"""Check at start that the graphs give the same numbers here as torch gave at export."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.arrays import FloatArray, IntArray
from service.bundle import Bundle
from service.errors import StartupError
from service.runtime.cache import CrossCache
from service.runtime.session import Session

RELATIVE, ABSOLUTE = 1e-4, 1e-5  # fp32 limits, number by number
# int8 limits, relative to the Euclidean norm. Exact products give 0.02 to 0.04 for log-probs,
# products that saturate (x86 without VNNI) about 0.18.
INT8_TENSOR, INT8_LOG_PROBS = 0.2, 0.1

Torch = dict[str, NDArray[Any]]
Pair = tuple[str, NDArray[Any], NDArray[Any]]  # the tensor's name, ours, torch's


def check_parity(session: Session, bundle: Bundle) -> None:
    """Compare all graphs with parity.npz.

    Raises StartupError naming the first tensor that differs from torch's: at fp32 by more than
    1e-5 + 1e-4 |torch| anywhere, at int8 by more than a fifth of its norm, log-probs by a tenth.
    """
    with np.load(bundle.path("parity.npz"), allow_pickle=False) as file:
        torch: Torch = {name: file[name] for name in file.files}
    at_fp32 = session.precision != "int8"
    log_probs: list[tuple[FloatArray, FloatArray]] = []
    for name, ours, theirs in compare(session, torch):
        if at_fp32:
            equal = np.allclose(ours, theirs, rtol=RELATIVE, atol=ABSOLUTE)
            differs = (
                f"by up to {np.abs(ours - theirs).max():.2g}; the limit is 1e-5 + 1e-4 |torch|"
            )
        else:
            error = relative_error(ours, theirs)
            equal = error <= INT8_TENSOR
            differs = f"by {error:.0%}; the limit is {INT8_TENSOR:.0%}"
        if not equal:
            raise StartupError(
                f"{bundle.root}: {name} on {session.provider} differs from torch's {differs}:"
                " export the bundle again, or use another provider"
            )
        if name.startswith("log_probs"):
            log_probs.append((centred(ours), centred(theirs)))
    error = relative_error(*(np.concatenate(each) for each in zip(*log_probs, strict=True)))
    if error > INT8_LOG_PROBS:
        raise StartupError(
            f"{bundle.root}: log_probs on {session.provider} at {session.precision} differ from"
            f" torch's by {error:.0%}; the limit is {INT8_LOG_PROBS:.0%}: serve it with"
            " HEED_PRECISION=fp32, or export the bundle again"
        )


def relative_error(ours: FloatArray, theirs: FloatArray) -> float:
    return float(np.linalg.norm(ours - theirs) / max(np.linalg.norm(theirs), ABSOLUTE))


def centred(log_probs: FloatArray) -> FloatArray:
    """Subtract the mean: log-probs of a large vocabulary share an offset that hides errors."""
    return log_probs - log_probs.mean()


def compare(session: Session, torch: Torch) -> Iterator[Pair]:
    """Yield every tensor of every source, without padding; log-probs in the order of the step's
    candidates, valid until the next pair."""
    sources = unpadded(torch["source_ids"], torch["source_length"])
    targets = unpadded(torch["decoder_input_ids"], torch["decoder_length"])
    encoded, cross = session.encode(sources)
    for i, memory in enumerate(encoded):
        yield f"memory[{i}]", memory, torch["memory"][i, : len(memory)]
    yield from compare_steps(session, torch, cross, targets)
    if session.supports("encoder_attention"):
        for i, weights in enumerate(session.encoder_attention(sources)):
            yield from compare_layers("encoder_attention", i, weights, torch)
    if session.supports("attention"):
        crosses = [cross.pick([i]) for i in range(len(sources))]
        for i, (decoder, cross_weights) in enumerate(session.attention(targets, crosses)):
            yield from compare_layers("decoder_attention", i, decoder, torch)
            yield from compare_layers("cross_attention", i, cross_weights, torch)
    if session.supports("score"):
        yield from compare_scores(session, torch, cross, targets)


def compare_steps(
    session: Session, torch: Torch, cross: CrossCache, targets: Sequence[IntArray]
) -> Iterator[Pair]:
    """Compare cached steps with torch's one forward pass over the whole target."""
    cache = session.new_cache(rows_per_source=1)
    cache.insert(cross)
    vocabulary = torch["log_probs"].shape[-1]
    for position, tokens in enumerate(torch["decoder_input_ids"].T):
        top = session.step(cache, tokens, vocabulary)
        for i, target in enumerate(targets):
            if position < len(target):
                theirs = torch["log_probs"][i, position, top.ids[i]]
                yield f"log_probs[{i}, {position}]", top.log_probs[i], theirs


def compare_scores(
    session: Session, torch: Torch, cross: CrossCache, inputs: Sequence[IntArray]
) -> Iterator[Pair]:
    """Score the decoder inputs as if they were targets: any ids will do."""
    crosses = [cross.pick([i]) for i in range(len(inputs))]
    for i, log_probs in enumerate(session.score(inputs, inputs, crosses)):
        theirs = torch["log_probs"][i, range(len(log_probs)), inputs[i]]
        yield f"token_log_probs[{i}]", log_probs, theirs


def compare_layers(kind: str, i: int, weights: NDArray[Any], torch: Torch) -> Iterator[Pair]:
    for layer, ours in enumerate(weights):  # (H, queries, keys)
        theirs = torch[f"{kind}_{layer}"][i, :, : ours.shape[1], : ours.shape[2]]
        yield f"{kind}_{layer}[{i}]", ours, theirs


def unpadded(ids: IntArray, lengths: IntArray) -> list[IntArray]:
    return [row[:length] for row, length in zip(ids, lengths, strict=True)]
