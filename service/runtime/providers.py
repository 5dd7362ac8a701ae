"""Execution providers, and opening a graph on one of them."""

from functools import cache as once
from pathlib import Path

import onnxruntime as ort

from service.bundle import Bundle
from service.errors import StartupError
from service.settings import Provider

PROVIDERS = {
    Provider.cpu: "CPUExecutionProvider",
    Provider.cuda: "CUDAExecutionProvider",
    Provider.tensorrt: "TensorrtExecutionProvider",
}


SLOWER_FUSIONS = [
    "SkipLayerNormFusion",  # than an addition and a LayerNormalization, on CPUs
    "MatMulScaleFusion",  # a product that scales takes no short cut for a single row
]


@once
def load_cuda() -> None:
    if PROVIDERS[Provider.cuda] in ort.get_available_providers():
        ort.preload_dlls()  # CUDA and cuDNN as pip installed them


def open_graph(path: Path, provider: str, threads: int = 1) -> ort.InferenceSession:
    """Computes on the thread that runs it and, with all that run it, on `threads` - 1 others, which
    sleep between runs."""
    load_cuda()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.force_spinning_stop", "1")
    # Without VNNI the u8 x s8 product adds pairs in 16 bits and saturates: this makes it exact.
    options.add_session_config_entry("session.x64quantprecision", "1")
    return ort.InferenceSession(
        str(path), options, providers=[provider], disabled_optimizers=SLOWER_FUSIONS
    )


def provider_name(wanted: Provider) -> str:
    """Raises StartupError if a provider asked for by name is not in this ONNX Runtime."""
    available = ort.get_available_providers()
    if wanted is Provider.auto:
        wanted = Provider.cuda if PROVIDERS[Provider.cuda] in available else Provider.cpu
    if PROVIDERS[wanted] not in available:
        names = [provider.value for provider, name in PROVIDERS.items() if name in available]
        raise StartupError(f"provider {wanted.value} is not here; available: {', '.join(names)}")
    return PROVIDERS[wanted]


def usable_provider(bundle: Bundle, wanted: Provider) -> str:
    """Raises StartupError if one that was asked for by name finds no device."""
    name = provider_name(wanted)
    if name == PROVIDERS[Provider.cpu]:
        return name
    graphs = next(iter(bundle.manifest.precisions.values()))
    found: str = open_graph(bundle.path(graphs["encoder"]), name).get_providers()[0]
    if found != name and wanted is not Provider.auto:
        raise StartupError(
            f"provider {wanted.value} is installed but found no device it can use; {found} would"
            " work"
        )
    return found
