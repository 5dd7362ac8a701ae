"""Validate which attention a request selects, and which heads it switches off: the fields must
agree with each other and with the model."""

from collections.abc import Sequence
from functools import partial

from service.api.reading.call import Call
from service.api.reading.faults import Faults
from service.api.reading.field_types import Indices
from service.api.reading.requests import AblatedHeads, AttentionSelection
from service.attention import NO_ATTENTION, AttentionKind, Head, Selection
from service.bundle.manifest import Config, GraphName
from service.errors import MOST_FAULTS, Fault, Invalid, NotFound
from service.serving.model import Model

GATED_GRAPHS: frozenset[GraphName] = frozenset({"gated_encoder", "gated_step", "gated_decoder"})
NO_SELF_ATTENTION = "the model's decoder is an SSRU, which has no self-attention"
DEFAULT_THRESHOLD = 0.2  # least weight of a pair in an alignment
ATTENTION_GRAPHS: dict[AttentionKind, GraphName] = {
    "encoder": "encoder_attention",
    "decoder": "attention",
    "cross": "attention",
}


def read_selection(body: AttentionSelection, model: Model, faults: Faults) -> Selection:
    """Return which weights `body` selects.

    Raise NotFound if the model lacks a graph for them, or an alignment. Add a fault for each index
    out of range, and for each field that contradicts another one.
    """
    check_graphs(body, model)
    if body.alignment == "model":
        check_aligns(model)
    for check in (check_kinds, check_rollout, check_alignment, check_threshold, check_row_range):
        with faults.collect():
            check(body)
    with faults.collect():
        return select(body, model.manifest.config)
    return NO_ATTENTION


def select(body: AttentionSelection, config: Config) -> Selection:
    """Return which weights `body` selects. Raise Invalid for each index out of range, naming the
    range."""
    faults, depth = Faults(), layers_of(config)
    layers: dict[AttentionKind, list[int]] = {}
    for kind in body.kinds:
        with faults.collect():
            layers[kind] = resolve(body.layers, depth[kind], f"{kind} layer", "/attention/layers")
    heads: list[int] = []
    with faults.collect():
        heads = resolve(body.heads, config.num_heads, "head", "/attention/heads")
    faults.raise_all()
    return Selection(
        layers=layers,
        heads=heads,
        reduce_heads=body.reduce_heads,
        reduce_layers=body.reduce_layers,
        measure=body.measure,
        rows=(body.rows[0], body.rows[1]) if body.rows else None,
        alignment=body.alignment,
        threshold=DEFAULT_THRESHOLD if body.threshold is None else body.threshold,
        decimals=body.decimals,
    )


def layers_of(config: Config) -> dict[AttentionKind, int]:
    """Return how many layers have each kind of attention that the network has."""
    decoder = dict.fromkeys(config.decoder_kinds, config.num_decoder_layers)
    return {"encoder": config.num_encoder_layers, **decoder}


async def read_ablation(
    call: Call, ablate: Sequence[AblatedHeads], model: Model, faults: Faults
) -> tuple[Head, ...]:
    """Return the heads to switch off, each once.

    Raise NotFound if the model has no gates. Add a fault for each kind of attention that the
    network does not have, and for each index out of range.
    """
    check_gates(model, "switch off heads", "ablate")
    find = partial(find_heads, ablate, model.manifest.config, faults)
    return await call.compute_reading(find, sum(len(each.heads) for each in ablate))


def find_heads(ablate: Sequence[AblatedHeads], config: Config, faults: Faults) -> tuple[Head, ...]:
    depth, heads = layers_of(config), config.num_heads
    found: dict[Head, None] = {}
    for i, each in enumerate(ablate):
        if each.kind not in depth:
            detail = f"is {each.kind}, but {NO_SELF_ATTENTION}: give {' or '.join(depth)}"
            faults.add(Invalid.at(f"/ablate/{i}/kind", detail))
            continue
        pointer, layers = f"/ablate/{i}", depth[each.kind]
        if not -layers <= each.layer < layers:
            detail = f"is {each.layer} but there is no such {each.kind} layer: give {-layers} to"
            faults.add(Invalid.at(f"{pointer}/layer", f"{detail} {layers - 1}"))
        with faults.collect():
            indices = resolve(each.heads, heads, "head", f"{pointer}/heads")
            found |= {Head(each.kind, each.layer % layers, head): None for head in indices}
    return tuple(found)


def check_graphs(body: AttentionSelection, model: Model) -> None:
    shown = kinds_of(model)
    why = (
        f"select {' or '.join(shown)}"
        if shown
        else "its bundle lacks the graphs, or HEED_ATTENTION is false; use another model"
    )
    for kind in body.kinds:
        if kind not in shown:
            absent = kind not in layers_of(model.manifest.config)
            because = f"{NO_SELF_ATTENTION}; {why}" if absent else why
            raise NotFound(
                "not_supported", f"model {model.name} cannot show {kind} attention: {because}"
            )
    if body.measure == "norm":
        check_gates(model, "measure attention by norms", "measure")


def check_scores(model: Model) -> None:
    """Raise NotFound if the model cannot score targets."""
    if "score" not in model.engine.opened.graphs:
        detail = (
            f"model {model.name} cannot score targets: its bundle lacks the score graph, or"
            " HEED_SCORE is false; use another model"
        )
        raise NotFound("not_supported", detail)


def check_gates(model: Model, what: str, field: str) -> None:
    """Raise NotFound if the bundle of the model lacks a gated graph; they also give the norms."""
    if not model.engine.opened.graphs >= GATED_GRAPHS:
        raise NotFound(
            "not_supported",
            f"model {model.name} cannot {what}: its bundle lacks the gated graphs; export or"
            f" convert it again, or omit {field}",
        )


def kinds_of(model: Model) -> list[AttentionKind]:
    """Return the kinds of attention that the model can show."""
    graphs, depth = model.engine.opened.graphs, layers_of(model.manifest.config)
    return [kind for kind in depth if ATTENTION_GRAPHS[kind] in graphs]


def can_align(model: Model) -> bool:
    """Return whether the model can align its targets with their sources."""
    return not why_no_alignment(model)


def check_aligns(model: Model) -> None:
    """Raise NotFound if the model cannot align its targets with their sources."""
    if why := why_no_alignment(model):
        raise NotFound("not_supported", f"model {model.name} has no alignment: {why}")


def why_no_alignment(model: Model) -> str:
    """Return why a model cannot align and what to do, empty if it can."""
    if "attention" not in model.engine.opened.graphs:
        return "its bundle lacks the attention graph, or HEED_ATTENTION is false; use another model"
    if "alignment" not in model.manifest.model_fields_set:
        return "its bundle does not say which attention aligns: run `heed align BUNDLE`"
    if model.manifest.alignment is None:
        return (
            "no head of it was found that aligns, and its model card says why; name layers and"
            " heads for /v1/attention, omit what needs an alignment, or use another model"
        )
    return ""


def check_kinds(body: AttentionSelection) -> None:
    if len(set(body.kinds)) < len(body.kinds):
        raise Invalid.at("/attention/kinds", "names a kind twice: name each at most once")


def check_rollout(body: AttentionSelection) -> None:
    if body.reduce_layers != "rollout":
        return
    needs = {
        "kinds to encoder, decoder or both": "cross" in body.kinds,
        "measure to weight": body.measure == "norm",
        "reduce_heads to mean or max": body.reduce_heads == "none",
    }
    if wrong := [each for each, lacks in needs.items() if lacks]:
        detail = "is rollout, which multiplies one matrix of self-attention weights per layer: set"
        raise Invalid.at("/attention/reduce_layers", f"{detail} {' and '.join(wrong)}")


def check_alignment(body: AttentionSelection) -> None:
    if body.alignment and "cross" not in body.kinds:
        detail = "is made of cross-attention: add cross to kinds, or omit alignment"
        raise Invalid.at("/attention/alignment", detail)


def check_threshold(body: AttentionSelection) -> None:
    if body.threshold is not None and body.alignment != "threshold":
        detail = "has no effect: set alignment to threshold, or omit threshold"
        raise Invalid.at("/attention/threshold", detail)


def check_row_range(body: AttentionSelection) -> None:
    """Raise Invalid if `rows` would select nothing, whatever the length of the target."""
    if body.rows is None:
        return
    if set(body.kinds) == {"encoder"}:
        detail = "selects rows of decoder and cross attention, but kinds has only encoder"
        raise Invalid.at("/attention/rows", f"{detail}: omit rows, or add a kind")
    start, stop = body.rows
    both_from_one_end = (start < 0) == (stop < 0)
    if (both_from_one_end and stop <= start) or (start < 0 and stop == 0):
        detail = f"is {body.rows}, which selects no row: give [start, stop), start before stop"
        raise Invalid.at("/attention/rows", detail)


def resolve(indices: Indices, size: int, name: str, pointer: str) -> list[int]:
    """Return indices from 0 to size - 1. Raise Invalid for those out of range, or given twice.

    `name` says what the indices count, for the message.
    """
    if indices == "all":
        return list(range(size))
    wrong = [(i, index) for i, index in enumerate(indices) if not -size <= index < size]
    if wrong:
        known = f"there is no such {name}: give {-size} to {size - 1}"
        named = wrong[:MOST_FAULTS]
        faults = [Fault(f"{pointer}/{i}", f"is {index} but {known}") for i, index in named]
        raise Invalid.of(faults, len(wrong) - len(named))
    resolved = [index % size for index in indices]
    if len(set(resolved)) < len(resolved):
        detail = f"names a {name} twice (negative indices count from the end): name each once"
        raise Invalid.at(pointer, detail)
    return resolved
