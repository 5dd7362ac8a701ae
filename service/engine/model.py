"""A model as endpoints see it: the client of its engine, and the tokenizers of both sides."""

from dataclasses import dataclass

from service.engine.client import EngineClient
from service.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Model:
    engine: EngineClient
    source: Tokenizer
    target: Tokenizer

    @property
    def name(self) -> str:
        return self.engine.bundle.manifest.name
