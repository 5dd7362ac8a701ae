"""A model for the endpoints: its engine and both tokenizers."""

from dataclasses import dataclass

from service.engine.supervisor import Supervisor
from service.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Model:
    """A model's engine, and the tokenizers of both sides."""

    engine: Supervisor
    source: Tokenizer
    target: Tokenizer

    @property
    def name(self) -> str:
        return self.engine.bundle.manifest.name
