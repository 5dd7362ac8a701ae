"""Check that the graphs give the same numbers here as torch gave at export.

The graphs that decode are checked at start, the others when they are first opened.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.arrays import FloatArray, IntArray
from service.bundle.manifest import Bundle, GraphName
from service.errors import StartupError
from service.runtime.attended import AttendedRow
from service.runtime.cache import Cross, CrossCache
from service.runtime.providers import reason_of
from service.runtime.reference import LARGEST_IDS, Torch, read_reference
from service.runtime.session import Session, unpadded
from service.search.protocol import Candidates
from service.search.rules import log_softmax

RELATIVE, ABSOLUTE = 1e-4, 1e-5  # fp32 limits, number by number


class Tolerance(NamedTuple):
    """Largest error of rounded graphs, relative to the Euclidean norm of torch's numbers."""

    tensor: float
    log_probs: float  # all of parity.npz together, centred


ROUNDED = {
    # Exact products give 0.02 to 0.04 for log-probs, products that saturate (x86 without VNNI)
    # about 0.18.
    "int8": Tolerance(0.2, 0.1),
    # Torch in half precision is off by 0.0016 at most for the default model and a random one.
    # Deeper networks round more often, and a wrong kernel is off by much more than these.
    "fp16": Tolerance(0.05, 0.02),
}
LOG_PROBS = ("log_probs", "encoder_gated_log_probs", "decoder_gated_log_probs")
Compared = tuple[str, NDArray[Any], NDArray[Any]]  # the tensor's name, ours, torch's
Compare = Callable[[Session, Torch], Iterator[Compared]]


def check_parity(session: Session, bundle: Bundle) -> None:
    """Compare encoder and step with parity.npz now, and other graphs when they are first opened.

    Raise StartupError naming the first tensor that differs from torch's: at fp32 by more than
    1e-5 + 1e-4 |torch| anywhere, at other precisions by more than the share of its norm that
    ROUNDED gives.
    """
    graphs: list[GraphName] = [graph for graph in COMPARISONS if session.supports(graph)]
    torch = read_reference(bundle.path("parity.npz"), bundle.manifest.config, graphs)
    try:
        fault = find_fault(session, compare_decoding(session, torch))
    except Exception as error:  # ONNX Runtime's errors have no class of their own
        raise StartupError(
            f"{bundle.root}: the graphs of {session.precision} fail on the inputs of parity.npz:"
            f" {reason_of(error)}: export the bundle again, or use another provider"
        ) from error
    if fault:
        raise StartupError(f"{bundle.root}: {fault}")

    def check(compare: Compare) -> str | None:
        fault = find_fault(session, compare(session, torch))
        return f"model {bundle.manifest.name} cannot answer this: {fault}" if fault else None

    for graph, compare in COMPARISONS.items():
        session.check_on_opening(graph, partial(check, compare))
    session.check_on_opening("output", partial(check, compare_all_tokens))  # with lists
    for language, listed in session.target_lists.items():
        listed.output.check = partial(check, partial(compare_list, language=language))


def find_fault(session: Session, pairs: Iterable[Compared]) -> str | None:
    """Return what differs from torch, and what to do about it; None if nothing does."""
    log_probs: list[tuple[FloatArray, FloatArray]] = []
    for name, ours, theirs in pairs:
        if difference := describe_difference(session.precision, ours, theirs):
            return (
                f"{name} on {session.provider} differs from torch's {difference}:"
                " export the bundle again, or use another provider"
            )
        if name.startswith(LOG_PROBS):
            log_probs.append((centred(ours), centred(theirs)))
    if not log_probs:
        return None
    error = relative_error(*(np.concatenate(each) for each in zip(*log_probs, strict=True)))
    limit = ROUNDED[session.precision].log_probs if session.precision in ROUNDED else np.inf
    if error <= limit:
        return None
    return (
        f"log_probs on {session.provider} at {session.precision} differ from torch's by"
        f" {error:.0%}; the limit is {limit:.0%}: serve it with HEED_PRECISION=fp32, or"
        " export the bundle again"
    )


def describe_difference(precision: str, ours: FloatArray, theirs: FloatArray) -> str | None:
    """Return by how much two tensors differ, or None if that is within the limit."""
    if precision in ROUNDED:
        error, limit = relative_error(ours, theirs), ROUNDED[precision].tensor
        return None if error <= limit else f"by {error:.0%}; the limit is {limit:.0%}"
    if np.allclose(ours, theirs, rtol=RELATIVE, atol=ABSOLUTE):
        return None
    return f"by up to {np.abs(ours - theirs).max():.2g}; the limit is 1e-5 + 1e-4 |torch|"


def relative_error(ours: FloatArray, theirs: FloatArray) -> float:
    return float(np.linalg.norm(ours - theirs) / max(np.linalg.norm(theirs), ABSOLUTE))


def centred(log_probs: FloatArray) -> FloatArray:
    """Subtract the mean: log-probs of a large vocabulary share an offset that hides errors."""
    return log_probs - log_probs.mean()


def compare_decoding(session: Session, torch: Torch) -> Iterator[Compared]:
    """Yield memory and log-probs of every source, without padding.

    Cached steps are compared with torch's one forward pass over the whole target.
    """
    encoded, cross = session.encode(sample_sources(torch))
    for i, memory in enumerate(encoded):
        yield f"memory[{i}]", memory, torch["memory"][i, : len(memory)]
    if session.target_lists:
        yield from compare_list(session, torch, next(iter(session.target_lists)))
    else:
        compare = compare_shortlisted if session.shortlists else compare_steps
        yield from compare(session, cross, torch)


def compare_steps(session: Session, cross: Cross, torch: Torch) -> Iterator[Compared]:
    for i, position, top, log_probs in steps(session, cross, torch):
        ids, theirs = (torch[name][i, position] for name in ("log_prob_ids", "log_probs"))
        yield f"log_probs[{i}, {position}]", log_probs[ids], theirs
        largest = theirs[: top.log_probs.shape[1]]
        yield f"top_log_probs[{i}, {position}]", top.log_probs[i], largest
        yield f"top_log_probs[{i}, {position}]", log_probs[top.ids[i]], largest
    if session.supports("draft_step") and not session.shortlists:  # it may use drafts
        for i in range(len(torch["source_length"])):
            yield from compare_several_tokens(session, cross, torch, [i])


def compare_shortlisted(session: Session, cross: Cross, torch: Torch) -> Iterator[Compared]:
    """Let the shortlist of each source hold the tokens whose log-probs are known, and compare these
    as if there were no others."""
    assert isinstance(cross, CrossCache)  # shortlists are used on a CPU alone
    listed = replace(cross, listed=[np.unique(ids) for ids in torch["log_prob_ids"]])
    for i, position, _, log_probs in steps(session, listed, torch, shortlisted=True):
        ids, theirs = (torch[name][i, position] for name in ("log_prob_ids", "log_probs"))
        yield f"log_probs[{i}, {position}]", log_softmax(log_probs[ids]), log_softmax(theirs)


def compare_list(session: Session, torch: Torch, language: tuple[int, ...]) -> Iterator[Compared]:
    """Compare the log-probs of a language's listed tokens as if only these were known."""
    tokens = session.target_lists[language].tokens
    _, cross = session.encode(sample_sources(torch))
    for i, position, _, log_probs in steps(session, cross, torch, language=language):
        ids, theirs = (torch[name][i, position] for name in ("log_prob_ids", "log_probs"))
        known = np.isin(ids, tokens)
        if known.any():
            ours = log_softmax(log_probs[ids[known]])
            yield f"log_probs[{i}, {position}]", ours, log_softmax(theirs[known])


def compare_all_tokens(session: Session, torch: Torch) -> Iterator[Compared]:
    """Compare the step that scores all tokens, of a model with shortlists or lists of languages."""
    _, cross = session.encode(sample_sources(torch))
    return compare_steps(session, cross, torch)


def steps(
    session: Session,
    cross: Cross,
    torch: Torch,
    gates: FloatArray | None = None,
    *,
    shortlisted: bool = False,
    language: tuple[int, ...] = (),
) -> Iterator[tuple[int, int, Candidates, FloatArray]]:
    """Yield for each target and position the candidates of all, and the log-probs (V,) of this one;
    `gates` are (B, K, L, H)."""
    cache = session.new_cache(1, shortlisted, language)
    cache.insert(cross)
    targets = torch_targets(torch)
    for position, tokens in enumerate(torch["decoder_input_ids"].T):
        top = session.step(cache, tokens, LARGEST_IDS, logits=True, gates=gates)
        assert top.logits is not None
        log_probs = log_softmax(top.logits)
        for i, target in enumerate(targets):
            if position < len(target):
                yield i, position, top, log_probs[i]


def compare_draft_step(session: Session, torch: Torch) -> Iterator[Compared]:
    """Read the targets of all sources together, which `step` cannot."""
    _, cross = session.encode(sample_sources(torch))
    sources = [*range(len(torch["source_length"]))]
    return compare_several_tokens(session, cross, torch, sources if sources[1:] else [0, 0])


def compare_several_tokens(
    session: Session, cross: Cross, torch: Torch, sources: Sequence[int]
) -> Iterator[Compared]:
    """Read the first token of the targets of these sources, then all others at once."""
    cache = session.new_cache(rows_per_source=1)
    cache.insert(cross.pick(sources))
    inputs, position = torch["decoder_input_ids"][sources], 0
    targets = torch_targets(torch)
    for tokens in filter(np.size, (inputs[:, :1], inputs[:, 1:])):  # (B, N)
        count = tokens.shape[1]
        top = session.draft_step(cache, tokens, LARGEST_IDS, logits=True)
        assert top.logits is not None
        log_probs = log_softmax(top.logits).reshape(*tokens.shape, -1)  # (B, N, V)
        for row, i in enumerate(sources):
            for place in range(min(count, len(targets[i]) - position)):
                ids, theirs = (
                    torch[name][i, position + place] for name in ("log_prob_ids", "log_probs")
                )
                yield f"log_probs[{i}, {position + place}]", log_probs[row, place, ids], theirs
        cache.position += count
        position += count


def compare_encoder_attention(
    session: Session, torch: Torch, gates: FloatArray | None = None
) -> Iterator[Compared]:
    for i, attended in enumerate(session.encoder_attention(sample_sources(torch), gates)):
        yield from compare_layers("encoder_attention", i, attended, torch)


def compare_attention(
    session: Session, torch: Torch, gates: FloatArray | None = None
) -> Iterator[Compared]:
    computed = session.attention(torch_targets(torch), crosses_of(session, torch), gates)
    for i, attended in enumerate(computed):
        for kind, each in attended.items():
            yield from compare_layers(f"{kind}_attention", i, each, torch)


def compare_scores(
    session: Session, torch: Torch, name: str = "log_probs", gates: FloatArray | None = None
) -> Iterator[Compared]:
    """Score at each position an id whose log-prob is known: any will do."""
    inputs = torch_targets(torch)
    targets = [torch["log_prob_ids"][i, : len(each), -1] for i, each in enumerate(inputs)]
    for i, ours in enumerate(session.score(inputs, targets, crosses_of(session, torch), gates)):
        yield f"token_log_probs[{i}]", ours, torch[name][i, : len(ours), -1]


def compare_gated_encoder(session: Session, torch: Torch) -> Iterator[Compared]:
    """Compare what is decoded from a gated memory, then weights and norms with open gates."""
    gates = gates_of(torch, "encoder_gates")
    _, cross = session.encode(sample_sources(torch), gates)
    yield from compare_gated_steps(session, cross, torch, "encoder_gated_log_probs")
    yield from compare_encoder_attention(session, torch, np.ones_like(gates))


def compare_gated_step(session: Session, torch: Torch) -> Iterator[Compared]:
    _, cross = session.encode(sample_sources(torch))
    gates = gates_of(torch, "decoder_gates")
    yield from compare_gated_steps(session, cross, torch, "decoder_gated_log_probs", gates)


def compare_gated_steps(
    session: Session,
    cross: Cross,
    torch: Torch,
    name: str,
    gates: FloatArray | None = None,
) -> Iterator[Compared]:
    for i, position, _, log_probs in steps(session, cross, torch, gates):
        ids = torch["log_prob_ids"][i, position]
        yield f"{name}[{i}, {position}]", log_probs[ids], torch[name][i, position]


def compare_gated_decoder(session: Session, torch: Torch) -> Iterator[Compared]:
    """Compare gated scores, then weights and norms with open gates."""
    gates = gates_of(torch, "decoder_gates")
    yield from compare_scores(session, torch, "decoder_gated_log_probs", gates)
    yield from compare_attention(session, torch, np.ones_like(gates))


def gates_of(torch: Torch, name: str) -> FloatArray:
    """Return the same gates for each source."""
    gates = torch[name]
    return np.repeat(gates[None], len(torch["source_length"]), 0)


COMPARISONS: dict[GraphName, Compare] = {
    "step": compare_all_tokens,
    "draft_step": compare_draft_step,
    "attention": compare_attention,
    "encoder_attention": compare_encoder_attention,
    "score": compare_scores,
    "gated_encoder": compare_gated_encoder,
    "gated_step": compare_gated_step,
    "gated_decoder": compare_gated_decoder,
}


def compare_layers(kind: str, i: int, attended: AttendedRow, torch: Torch) -> Iterator[Compared]:
    for layer, ours in enumerate(attended.weights):  # (H, queries, keys)
        theirs = torch[f"{kind}_{layer}"][i, :, : ours.shape[1], : ours.shape[2]]
        yield f"{kind}_{layer}[{i}]", ours, theirs
    norms = kind.replace("attention", "value_norms")
    for layer, ours in enumerate(() if attended.norms is None else attended.norms):  # (H, keys)
        theirs = torch[f"{norms}_{layer}"][i, :, : ours.shape[1]]
        yield f"{norms}_{layer}[{i}]", ours, theirs


def sample_sources(torch: Torch) -> list[IntArray]:
    return unpadded(torch["source_ids"], torch["source_length"])


def torch_targets(torch: Torch) -> list[IntArray]:
    return unpadded(torch["decoder_input_ids"], torch["decoder_length"])


def crosses_of(session: Session, torch: Torch) -> list[Cross]:
    sources = sample_sources(torch)
    _, cross = session.encode(sources)
    return [cross.pick([i]) for i in range(len(sources))]
