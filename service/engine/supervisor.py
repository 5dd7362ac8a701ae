"""Keep the engine of a model running: start another when it dies or makes no progress."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from service.bundle import Bundle
from service.engine.client import EngineClient, OnProgress
from service.engine.messages import Answer, Entry, Opened, Status
from service.errors import HeedError
from service.logs import log_error
from service.settings import Settings

LOOK_EVERY = 1.0  # seconds
PATIENCE = 5.0  # seconds for an engine to report its status
MISSES = 2  # reports in a row that do not come in time
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds before a new engine is started; doubled each time
PROVEN = 60.0  # seconds after which an engine that dies is replaced after the first pause again

OpenEngine = Callable[[Bundle, Settings], EngineClient]


class Supervisor:
    """Answers like the engine that runs now. While there is none, it raises Unavailable."""

    def __init__(
        self, bundle: Bundle, settings: Settings, open_engine: OpenEngine = EngineClient
    ) -> None:
        self.bundle = bundle
        self.restarts = 0  # engines started in the place of others
        self._settings = settings
        self._open_engine = open_engine
        self._engine = open_engine(bundle, settings)
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the engine and watch it. Raises StartupError.

        Call close() afterwards, even if this raises or is cancelled: it ends the process.
        """
        await self._engine.start()
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """End the engine once it has finished accepted entries; start no other."""
        if self._watching:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        await self._engine.close()

    @property
    def opened(self) -> Opened:
        """Return how the bundle was opened."""
        return self._engine.opened

    def submit(
        self, entries: Sequence[Entry], on_progress: OnProgress | None = None
    ) -> list[asyncio.Future[Answer]]:
        """Send entries to the engine: see EngineClient.submit."""
        return self._engine.submit(entries, on_progress)

    async def status(self) -> Status:
        """Ask the engine for its status. Raises Unavailable if there is none now."""
        return await self._engine.status()

    async def _watch(self) -> None:
        pause = FIRST_PAUSE
        while True:
            started = time.monotonic()
            await self._until_useless(self._engine)
            if time.monotonic() - started > PROVEN:
                pause = FIRST_PAUSE
            self._engine.kill()
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            await self._replace()

    async def _until_useless(self, engine: EngineClient) -> None:
        """Return once the engine has ended, is silent for MISSES looks, or has made no progress
        for settings.timeout seconds: by then no client waits for what it computes."""
        misses, progress = 0, time.monotonic()
        while not engine.gone and misses < MISSES:
            await asyncio.sleep(LOOK_EVERY)
            try:
                async with asyncio.timeout(PATIENCE):
                    status = await engine.status()
            except (TimeoutError, HeedError):
                misses += 1
                continue
            misses = 0
            if status.ready:
                progress = time.monotonic()
            elif time.monotonic() - progress > self._settings.timeout:
                return

    async def _replace(self) -> None:
        """Start an engine in the place of the present one, which has ended or is ending."""
        name, engine = self.bundle.manifest.name, self._open_engine(self.bundle, self._settings)
        try:
            await engine.start()
        except asyncio.CancelledError:
            await engine.close()  # nothing else would end its process
            raise
        except Exception as error:  # noqa: BLE001  whatever broke: the next attempt may succeed
            log_error("engine not restarted", model=name, error=str(error))
            await engine.close()
        else:
            dead, self._engine = self._engine, engine
            self.restarts += 1
            await dead.close()
            log_error("engine restarted", model=name, restarts=self.restarts)
