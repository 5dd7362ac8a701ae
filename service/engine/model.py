"""A bundle open for requests, and what a request may ask of it."""

from collections import Counter
from dataclasses import dataclass

from service.api import requests, responses
from service.api.validation import read_selection
from service.attention import NOTHING, Kind, Selection
from service.bundle import Graph
from service.engine.client import EngineProcess
from service.errors import NotFound
from service.tokenizer import Tokenizer

GRAPHS: dict[Kind, Graph] = {
    "encoder": "encoder_attention",
    "decoder": "attention",
    "cross": "attention",
}


@dataclass(frozen=True, slots=True)
class Model:
    engine: EngineProcess
    source: Tokenizer
    target: Tokenizer

    @property
    def name(self) -> str:
        return self.engine.bundle.manifest.name

    def selection(self, wanted: requests.AttentionSelection | None) -> Selection:
        """Raises NotFound if the bundle lacks a graph it needs, and what reading it raises."""
        if wanted is None:
            return NOTHING
        for kind in wanted.kinds:
            if GRAPHS[kind] not in self.engine.opened.graphs:
                raise NotFound("not_supported", f"model {self.name} shows no {kind} attention")
        return read_selection(wanted, self.engine.bundle.manifest.config)

    def attention_nbytes(
        self, wanted: requests.AttentionSelection, lengths: Counter[tuple[int, int, int]]
    ) -> int:
        """Of the weights for sources and targets of these lengths, each so often; at least of what
        is computed to select from, for the longest of them."""
        selection, config = self.selection(wanted), self.engine.bundle.manifest.config
        answer = sum(count * selection.nbytes(*each) for each, count in lengths.items())
        return max(answer, *(selection.pass_nbytes(config, s, read) for s, _, read in lengths))

    def reads(self, forced: int, steps: int) -> int:
        """How many positions the decoder reads for so many steps after what was forced."""
        return len(self.engine.bundle.manifest.decoder_start_ids) - 1 + forced + steps

    def card(self) -> responses.ModelCard:
        manifest, opened = self.engine.bundle.manifest, self.engine.opened
        return responses.ModelCard(
            name=manifest.name,
            task=manifest.task,
            licence=manifest.licence,
            attribution=manifest.attribution,
            precision=opened.precision,
            provider=opened.provider,
            attention=[kind for kind, graph in GRAPHS.items() if graph in opened.graphs],
            limits=manifest.limits.model_dump(),
            max_new_tokens=manifest.decoding.max_new_tokens,
            config=manifest.config.model_dump(),
        )
