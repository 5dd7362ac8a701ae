"""A bundle open for requests, and what a request may ask of it."""

from dataclasses import dataclass

from service import bodies, schemas
from service.attention import NOTHING, Kind, Selection, select
from service.bundle import Graph
from service.errors import Invalid, NotFound
from service.process import EngineProcess
from service.search import SearchOptions
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

    def max_new_tokens(self, wanted: int | None) -> int:
        """Raises Invalid if that is more than the decoder has positions for."""
        manifest = self.engine.bundle.manifest
        limit = manifest.limits.max_target_length + 1 - len(manifest.decoder_start_ids)
        if wanted is not None and wanted > limit:
            detail = f"{wanted} is more than this model can generate: give 1 to {limit}"
            raise Invalid.at("/max_new_tokens", detail)
        return wanted or manifest.decoding.max_new_tokens

    def search(self, body: bodies.Searching, num_hypotheses: int = 1) -> SearchOptions:
        """Raises Invalid for options that contradict each other or the model."""
        if num_hypotheses > body.beam_size:
            detail = f"{num_hypotheses} is more than the {body.beam_size} of beam_size"
            raise Invalid.at("/num_hypotheses", detail)
        return SearchOptions(
            max_new_tokens=self.max_new_tokens(body.max_new_tokens),
            beam_size=body.beam_size,
            num_hypotheses=num_hypotheses,
            length_penalty=body.length_penalty,
            early_stopping=body.early_stopping,
        )

    def selection(self, wanted: bodies.AttentionSelection | None) -> Selection:
        """Raises NotFound if the bundle lacks a graph it needs, Invalid for a wrong index."""
        if wanted is None:
            return NOTHING
        for kind in wanted.kinds:
            if GRAPHS[kind] not in self.engine.opened.graphs:
                raise NotFound("not_supported", f"model {self.name} shows no {kind} attention")
        config = self.engine.bundle.manifest.config
        return select(wanted.kinds, wanted.layers, wanted.heads, config)

    def card(self) -> schemas.ModelCard:
        manifest, opened = self.engine.bundle.manifest, self.engine.opened
        return schemas.ModelCard(
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
