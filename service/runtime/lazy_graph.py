"""A graph that takes no memory before it is needed."""

from collections.abc import Callable
from threading import RLock

import onnxruntime as ort

from service.errors import PassFailed


class LazyGraph:
    """A graph that is opened when it is first needed. Any number of threads may open it; the first
    one opens and checks it for all."""

    def __init__(self, open_session: Callable[[], ort.InferenceSession]) -> None:
        self._open_session = open_session
        self._lock = RLock()  # the check runs the graph, on the thread that opened it
        self._session: ort.InferenceSession | None = None
        self._refusal: str | None = None
        self.check: Callable[[], str | None] | None = None  # returns what is wrong with the graph

    def open(self) -> ort.InferenceSession:
        """Raise PassFailed if the check found something wrong, now or before.

        If it cannot be opened or checked now, for want of memory, the next call tries again.
        """
        with self._lock:
            if self._refusal:
                raise PassFailed(self._refusal)
            if self._session:
                return self._session
            self._session = session = self._open_session()
            try:
                self._refusal = self.check() if self.check else None
            except Exception:
                self._session = None
                raise
            if self._refusal:
                self._session = None
                raise PassFailed(self._refusal)
            return session
