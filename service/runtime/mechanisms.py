"""The graphs of /v1/attend: attention without a model."""

from pathlib import Path
from typing import cast

from service.arrays import Feeds, FloatArray
from service.runtime.providers import installed_provider, open_graph
from service.settings.settings import Provider


class Mechanisms:
    """An open graph for each mechanism, named by its file. Safe to call from several threads."""

    def __init__(self, folder: Path, wanted: Provider) -> None:
        """Raise StartupError if the provider is not installed."""
        provider = installed_provider(wanted)
        self._graphs = {
            path.stem: open_graph(path, provider, arena=False) for path in folder.glob("*.onnx")
        }

    def attend(self, mechanism: str, feeds: Feeds) -> tuple[FloatArray, ...]:
        """Return outputs (B, T, V) and weights (B, T, S)."""
        return tuple(cast("list[FloatArray]", self._graphs[mechanism].run(None, feeds)))
