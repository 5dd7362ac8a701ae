"""A model for the endpoints: its engine and both tokenizers."""

import asyncio
from dataclasses import dataclass, field

from service.bundle.manifest import Manifest
from service.serving.supervisor import Supervisor
from service.text.tokenizer import Tokenizer


@dataclass(slots=True, eq=False)
class Model:
    """A model's engine, and the tokenizers of both sides. Requests tell when they use it, so that
    none loses its engine."""

    engine: Supervisor
    source: Tokenizer
    target: Tokenizer
    name: str = field(init=False)
    manifest: Manifest = field(init=False)
    users: int = field(default=0, init=False)  # requests that are not answered yet
    unused: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        self.unused.set()
        self.manifest = self.engine.bundle.manifest
        self.name = self.manifest.name

    def use(self) -> None:
        self.users += 1
        self.unused.clear()

    def release(self) -> None:
        self.users -= 1
        if not self.users:
            self.unused.set()
