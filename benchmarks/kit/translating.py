"""CTranslate2 in the place of Heed's engine, behind the same HTTP application."""

import asyncio
import math
import threading
from collections import deque
from collections.abc import Sequence

import ctranslate2

from service.bundle.manifest import Bundle
from service.search.protocol import Hypothesis
from service.serving.client import EngineClient, settle
from service.settings.settings import Settings
from service.wire import Answer, Entry, Opened, Status

LARGEST_BATCH = 64  # sources that CTranslate2 decodes together
Waiting = tuple[Entry, "asyncio.Future[Answer]"]


class Translating(EngineClient):
    """CTranslate2 int8 in the server's own process, with one worker per core.

    A free worker decodes all waiting entries as one batch, as servers built on CTranslate2 do.
    Only greedy search works: no stream, no attention. The model is in the folder `ctranslate2`
    next to the bundle (`write_models`).
    """

    def __init__(self, bundle: Bundle, settings: Settings) -> None:
        super().__init__(bundle, settings)
        self.opened = Opened(precision="int8", provider="cpu", workers=1, graphs=frozenset())
        self._translator = ctranslate2.Translator(
            str(bundle.root.parent / "ctranslate2"),
            compute_type="int8",
            inter_threads=settings.cores,
            intra_threads=1,
        )
        self._waiting: deque[Waiting] = deque()
        self._arrived, self._taking = threading.Semaphore(0), threading.Lock()

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        for _ in range(self._translator.num_translators):
            threading.Thread(target=self._work, daemon=True).start()

    async def close(self) -> None:
        """Do nothing: the threads end with the process."""

    async def status(self) -> Status:
        return Status(ready=True, rows=0)

    def submit(
        self,
        entries: Sequence[Entry],
        on_progress: object = None,
        seconds: float = math.inf,
        request_id: str = "",
        rest: object = None,
    ) -> "list[asyncio.Future[Answer]]":
        # Nothing is streamed, and every request is accepted
        del on_progress, seconds, request_id, rest
        futures = [self._loop.create_future() for _ in entries]
        self._waiting.extend(zip(entries, futures, strict=True))
        self._arrived.release()
        return futures

    def _work(self) -> None:
        while True:
            self._arrived.acquire()
            with self._taking:
                count = min(len(self._waiting), LARGEST_BATCH)
                batch = [self._waiting.popleft() for _ in range(count)]
            if batch:
                self._translate(batch)

    def _translate(self, batch: list[Waiting]) -> None:
        limits = [entry.search.max_new_tokens for entry, _ in batch if entry.search]
        results = self._translator.translate_batch(
            [[str(token) for token in entry.source_ids] for entry, _ in batch],
            beam_size=1,
            max_decoding_length=max(limits),
            return_end_token=True,
        )
        found = [[int(token) for token in result.hypotheses[0]] for result in results]
        answers = [
            Answer(hypotheses=[Hypothesis(ids, [0.0] * len(ids), "length")]) for ids in found
        ]
        self._loop.call_soon_threadsafe(deliver, batch, answers)


def deliver(batch: list[Waiting], answers: list[Answer]) -> None:
    for (_, future), answer in zip(batch, answers, strict=True):
        settle(future, answer)
