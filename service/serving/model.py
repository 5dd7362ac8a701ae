"""A model for the endpoints: its engine and both tokenizers."""

import asyncio
from functools import cached_property

from service.search.ways import Ways
from service.serving.client import EngineClient
from service.serving.supervisor import Supervisor
from service.text.tokenizer import Tokenizer


class Model:
    """A model's supervised engine, and the tokenizers of both sides. Requests tell when they use
    it, so that none loses its engine."""

    def __init__(self, supervisor: Supervisor, source: Tokenizer, target: Tokenizer) -> None:
        self.supervisor = supervisor
        self.source = source
        self.target = target
        self.ways = Ways(target)  # of phrases that targets must contain
        self.bundle = supervisor.bundle
        self.manifest = self.bundle.manifest
        self.name = self.manifest.name
        self.users = 0  # requests that are not answered yet
        self.unused = asyncio.Event()
        self.unused.set()

    @property
    def engine(self) -> EngineClient:
        """The engine that runs now."""
        return self.supervisor.engine

    @property
    def replacement(self) -> int:
        """Id that replaces others in sources: that of the unknown token, or of padding if the
        vocabulary has none."""
        known = (self.manifest.unknown_id, self.source.unknown_id)
        return next((each for each in known if each is not None), self.manifest.pad_id)

    @cached_property
    def has_one_vocabulary(self) -> bool:
        """Whether ids mean the same in sources and in targets."""
        config, names = self.manifest.config, self.manifest.tokenizers
        if config.source_vocab_size != config.target_vocab_size:
            return False
        source, target = (self.manifest.files[each] for each in (names.source, names.target))
        alike = source.sha256 == target.sha256
        return alike or self.source.has_ids_of(self.target)

    def use(self) -> None:
        self.users += 1
        self.unused.clear()

    def release(self) -> None:
        self.users -= 1
        if not self.users:
            self.unused.set()
