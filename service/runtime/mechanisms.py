"""The graphs of /v1/attend: attention without a model."""

from pathlib import Path
from typing import cast

from service.arrays import Feeds, FloatArray
from service.runtime.providers import PROVIDERS, open_graph
from service.settings.settings import Provider


class Mechanisms:
    """An open graph for each mechanism, named by its file. Safe to call from several threads.

    They are small and run in the HTTP process, which needs no memory of a GPU for them.
    """

    def __init__(self, folder: Path) -> None:
        provider = PROVIDERS[Provider.cpu]
        self._graphs = {
            path.stem: open_graph(path, provider, arena=False) for path in folder.glob("*.onnx")
        }

    def attend(self, mechanism: str, feeds: Feeds) -> tuple[FloatArray, ...]:
        """Return outputs (B, T, V) and weights (B, T, S)."""
        return tuple(cast("list[FloatArray]", self._graphs[mechanism].run(None, feeds)))
