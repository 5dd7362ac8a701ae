"""Keep the engine of a model running: start another when it dies or makes no progress."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from service.bundle.manifest import Bundle
from service.errors import HeedError
from service.logs import log_error
from service.serving.client import EngineClient
from service.settings.settings import Settings
from service.wire import Status, Steps

CHECK_EVERY = 1.0  # seconds
PATIENCE = 5.0  # seconds for an engine to report its status
MISSES = 2  # reports in a row that do not come in time: a silent engine is found in 12 seconds
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds before a new engine is started; doubled each time
STABLE_AFTER = 60.0  # seconds of life after which the next pause is the first again
GONE = Status(ready=False, rows=0)


class Supervisor:
    """Keeps an engine running: `engine`, which may have ended while another one is being started.
    It then raises Unavailable."""

    def __init__(
        self,
        bundle: Bundle,
        settings: Settings,
        open_engine: Callable[[Bundle, Settings], EngineClient] = EngineClient,
    ) -> None:
        self.bundle = bundle
        self.engine = open_engine(bundle, settings)
        self.restarts = 0  # engines started in the place of others
        self.reported = GONE  # the latest report of the present engine
        self._steps_before = Steps()  # those of earlier engines
        self._settings = settings
        self._open_engine = open_engine
        self._watching: asyncio.Task[None] | None = None
        self._closing = set[asyncio.Task[None]]()

    async def start(self) -> None:
        """Start the engine and watch it. Raise StartupError.

        Call close() afterwards, even if this raises or is cancelled: it ends the process.
        """
        await self.engine.start()
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """End the engine once it has finished accepted entries; start no other."""
        if self._watching:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        if self._closing:
            await asyncio.wait(self._closing, timeout=self.engine.close_timeout)
        await self.engine.close()

    @property
    def steps(self) -> Steps:
        """Decoding steps of all engines until the latest report."""
        return self._steps_before + self.reported.steps

    async def _watch(self) -> None:
        pause = FIRST_PAUSE
        while True:
            started = time.monotonic()
            reason = await self._until_failed(self.engine)
            if time.monotonic() - started > STABLE_AFTER:
                pause = FIRST_PAUSE
            log_error("engine failed", model=self.bundle.manifest.name, reason=reason)
            self._steps_before, self.reported = self.steps, GONE
            self.engine.kill()
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            await self._replace()

    async def _until_failed(self, engine: EngineClient) -> str:
        """Return why an engine must be replaced, as soon as it must.

        It has ended, has sent nothing while MISSES status reports in a row were due, or has
        reported no progress for settings.timeout seconds: by then no client waits for what it
        computes.
        """
        missed = idle = 0  # reports in a row
        while not engine.ended.is_set():
            await asyncio.sleep(CHECK_EVERY)
            asked = time.monotonic()
            try:
                async with asyncio.timeout(PATIENCE):
                    self.reported = status = await engine.status()
            except (TimeoutError, HeedError):
                self.reported = replace(self.reported, ready=False)
                # a report may come late behind many orders and answers
                missed = 0 if engine.heard > asked else missed + 1
                if missed == MISSES:
                    return f"{MISSES} status reports did not come within {PATIENCE:g} seconds"
                continue
            missed, idle = 0, 0 if status.ready else idle + 1
            if idle * CHECK_EVERY > self._settings.timeout:
                return f"no progress for {self._settings.timeout:g} seconds"
        return "it has ended"

    async def _replace(self) -> None:
        """Start an engine in the place of the present one, which has ended or is ending."""
        name, engine = self.bundle.manifest.name, self._open_engine(self.bundle, self._settings)
        try:
            await engine.start()
        except asyncio.CancelledError:
            await engine.close()  # nothing else would end its process
            raise
        except Exception as error:  # noqa: BLE001  whatever broke: the next attempt may succeed
            log_error("engine not restarted", model=name, error=str(error) or repr(error))
            self._close(engine)
        else:
            self._close(self.engine)
            self.engine = engine
            self.restarts += 1
            log_error("engine restarted", model=name, restarts=self.restarts)

    def _close(self, engine: EngineClient) -> None:
        """Close an engine without waiting for it: its process may hang."""
        engine.kill()
        closing = asyncio.create_task(engine.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
