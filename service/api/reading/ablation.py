"""Read which heads a request switches off."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from service.api.reading.faults import Faults
from service.api.reading.field_types import Indices, Strict
from service.api.reading.selection import check_gates, layers_of, resolve
from service.attention import AttentionKind, Head
from service.errors import Invalid
from service.serving.model import Model


class AblatedHeads(Strict):
    instead = '{"kind": "cross", "layer": -1, "heads": [0]}'

    kind: AttentionKind = Field(description="Which attention: encoder, decoder or cross.")
    layer: int = Field(description="Which layer, from 0; negative ones count from the last.")
    heads: Indices = Field(
        description='Which heads of the layer: "all", or indices from 0; negative ones count from'
        " the last.",
    )


Ablate = Annotated[
    list[AblatedHeads],
    Field(
        max_length=1024,
        description="Heads to switch off: they give nothing, as if their slices of the output"
        " projection were 0. Everything is computed without them: encoding, every step of the"
        " search, scores and attention. The heads still have weights. Only models whose"
        " bundles have gated graphs can do it.",
    ),
]


def read_ablation(ablate: Sequence[AblatedHeads], model: Model, faults: Faults) -> tuple[Head, ...]:
    """Return the heads to switch off, each once.

    Raise NotFound if the model has no gates. Add a fault for each index out of range.
    """
    if not ablate:
        return ()
    check_gates(model, "switch off heads", "ablate")
    depth, heads = layers_of(model.manifest.config), model.manifest.config.num_heads
    found: dict[Head, None] = {}
    for i, each in enumerate(ablate):
        pointer, layers = f"/ablate/{i}", depth[each.kind]
        if not -layers <= each.layer < layers:
            detail = f"is {each.layer} but there is no such {each.kind} layer: give {-layers} to"
            faults.add(Invalid.at(f"{pointer}/layer", f"{detail} {layers - 1}"))
        with faults.collect():
            indices = resolve(each.heads, heads, "head", f"{pointer}/heads")
            found |= {Head(each.kind, each.layer % layers, head): None for head in indices}
    return tuple(found)
