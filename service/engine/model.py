"""A model for the endpoints: its engine client and both tokenizers."""

from dataclasses import dataclass

from service.engine.client import EngineClient
from service.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Model:
    """The client of a model's engine, and the tokenizers of both sides."""

    engine: EngineClient
    source: Tokenizer
    target: Tokenizer

    @property
    def name(self) -> str:
        return self.engine.bundle.manifest.name
