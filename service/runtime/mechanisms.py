"""The graphs of /v1/attend: attention without a model."""

from pathlib import Path
from typing import Any, cast

from numpy.typing import NDArray

from service.arrays import FloatArray
from service.runtime.providers import open_graph, provider_name
from service.settings import Provider


class Mechanisms:
    """The graphs of /v1/attend: attention without a model."""

    def __init__(self, folder: Path, wanted: Provider) -> None:
        provider = provider_name(wanted)
        self._graphs = {path.stem: open_graph(path, provider) for path in folder.glob("*.onnx")}

    def attend(self, mechanism: str, feeds: dict[str, NDArray[Any]]) -> tuple[FloatArray, ...]:
        """-> outputs (B, T, V), weights (B, T, S)."""
        return tuple(cast("list[FloatArray]", self._graphs[mechanism].run(None, feeds)))
