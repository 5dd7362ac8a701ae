"""Choose a precision, an execution provider and a number of workers, and open a graph."""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache as once
from pathlib import Path
from threading import RLock
from typing import NamedTuple, cast

import numpy as np
import onnxruntime as ort

from service.arrays import IntArray
from service.bundle.manifest import Bundle
from service.errors import PassFailed, StartupError, shorten_line
from service.settings.settings import Precision, Provider

PROVIDERS = {
    Provider.cpu: "CPUExecutionProvider",
    Provider.cuda: "CUDAExecutionProvider",
    Provider.tensorrt: "TensorrtExecutionProvider",
}
# ONNX Runtime applies these by default; on CPUs the fused operators are slower (docs/adr/0005).
SLOWER_FUSIONS = [
    "SkipLayerNormFusion",  # slower than an addition followed by a LayerNormalization
    "MatMulScaleFusion",  # a scaled product loses the fast path for a single row
]
# By default CUDA multiplies float32 with 10 bits of mantissa, and the self-check refuses that.
PROVIDER_OPTIONS = {PROVIDERS[Provider.cuda]: {"use_tf32": "0"}}
CAPTURING = {"enable_cuda_graph": "1"}
# What ONNX Runtime writes before the reason of an error
NOISE = re.compile(
    r"\[ONNXRuntimeError\] : \d+ : \w+ : |(Load model from .*? failed|Exception during \w+): ?"
    r"|/onnxruntime_src/\S+ .*?\)( const)? (?=[A-Z!\[])|\S+\.cc:\d+ \w+ "
)
LONGEST_ERROR = 200  # characters
CACHED = 16 << 20  # bytes of weights of a step for which one thread is as fast as all
TWICE = 128 << 20  # bytes of weights of a step that may be in memory twice
MEASURED = 2  # cores on which several workers for such a step were measured

# A graph that multiplies u8 rows by s8 weights of 127 (tests/write_product.py), and the rows with
# the largest product.
PRODUCT = Path(__file__).with_name("product.onnx")
LARGEST_ROWS = np.full((1, 256), 255, np.uint8)


def choose_precision(bundle: Bundle, wanted: Precision, on_cpu: bool) -> Precision:
    """Resolve `auto` to the first of int8, fp32 and fp16 that the bundle has, on a CPU; elsewhere
    of fp16, fp32 and int8. CPUs compute fp16 as fp32, with casts.

    Raise StartupError naming the bundle's precisions if it lacks the one wanted.
    """
    held = bundle.manifest.precisions
    if wanted is Precision.auto:
        best = Precision.int8, Precision.fp32, Precision.fp16
        preferred = best if on_cpu else best[::-1]
        wanted = next((each for each in preferred if each in held), wanted)
    if wanted not in held:
        names = ", ".join(held)
        raise StartupError(
            f"{bundle.root} has no graphs of precision {wanted}; choose one of: auto, {names}"
        )
    return wanted


class Shares(NamedTuple):
    """How the workers of a model share the cores of a CPU (docs/adr/0005)."""

    workers: int
    threads: int  # that compute a graph for one of them
    beside: int | None = None  # a step beside busy workers, if it is opened twice


def share_cores(step_bytes: int, cores: int, workers: int, *, may_twice: bool) -> Shares:
    """Return the shares of so many workers. 0: one a core if one thread is as fast as all or, with
    two cores, the step may be opened twice; else one in all, whose products all cores share."""
    most = TWICE if may_twice and cores == MEASURED else CACHED
    workers = workers or (cores if step_bytes <= most else 1)
    left = max(1, cores - workers + 1)
    twice = may_twice and workers > 1 and CACHED < step_bytes <= TWICE
    return Shares(workers, cores, left) if twice else Shares(workers, left)


@once
def products_saturate() -> bool:
    """Return whether u8 x s8 products overflow on this CPU, as on x86 without VNNI.

    There ONNX Runtime adds pairs of products in 16 bits. This is measured because ONNX Runtime does
    not report which kernel it chose. Its option for exact sums cannot simply stay on: it slows down
    int8 on CPUs with VNNI too (docs/adr/0006).
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    provider = PROVIDERS[Provider.cpu]
    session = ort.InferenceSession(str(PRODUCT), options, providers=[provider])
    (product,) = cast("list[IntArray]", session.run(None, {"rows": LARGEST_ROWS}))
    return int(product[0, 0]) != 127 * int(LARGEST_ROWS.sum())


@once
def load_cuda() -> None:
    """Load the CUDA and cuDNN libraries that pip installed."""
    ort.preload_dlls()


def open_graph(
    path: Path,
    provider: str,
    threads: int = 1,
    *,
    arena: bool = True,
    spin: bool = True,
    capture: bool = False,
) -> ort.InferenceSession:
    """Return a session that computes on its caller's thread and on `threads` - 1 others.

    All callers of the session share these other threads. They sleep between runs: spinning threads
    would take cores from other work. Within a run they `spin` or sleep until the next operator.
    An `arena` keeps the memory of the largest run for the next.
    With `capture`, CUDA may capture runs, unless the graph sends numbers to the host (`captures`).
    Raise StartupError if ONNX Runtime refuses the graph.
    """
    if provider != PROVIDERS[Provider.cpu]:
        load_cuda()
    entries = {"session.force_spinning_stop": "1"}
    if not spin:
        entries["session.intra_op.allow_spinning"] = "0"
    if products_saturate():  # exact sums make a product take 1.2 to 1.4 times as long
        entries["session.x64quantprecision"] = "1"
    if capture and provider == PROVIDERS[Provider.cuda]:
        with suppress(StartupError):
            return start_session(path, provider, threads, entries, arena, capture=True)
    return start_session(path, provider, threads, entries, arena)


def captures(session: ort.InferenceSession) -> bool:
    """Return whether CUDA may capture runs of this session."""
    options = session.get_provider_options().get(PROVIDERS[Provider.cuda], {})
    return options.get("enable_cuda_graph") == "1"


class LazyGraph:
    """A graph that is opened when it is first needed. Any number of threads may open it; the first
    one opens and checks it for all."""

    def __init__(self, open_session: Callable[[], ort.InferenceSession]) -> None:
        self._open_session = open_session
        self._lock = RLock()  # the check runs the graph, on the thread that opened it
        self._session: ort.InferenceSession | None = None
        self.checked: ort.InferenceSession | None = None  # the same, for which nobody need wait
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
            self.checked = session
            return session


def describe_graph(path: Path) -> ort.InferenceSession:
    """Return a session that tells inputs and outputs. It takes little time and memory, because it
    maps the weights and computes nothing. Raise StartupError as open_graph does."""
    entries = {"session.disable_prepacking": "1"}
    return start_session(path, PROVIDERS[Provider.cpu], 1, entries, False, optimized=False)


def start_session(
    path: Path,
    provider: str,
    threads: int,
    entries: Mapping[str, str],
    arena: bool,
    *,
    optimized: bool = True,
    capture: bool = False,
) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.enable_cpu_mem_arena = arena
    options.log_severity_level = 4  # each error is raised too
    for name, value in entries.items():
        options.add_session_config_entry(name, value)
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    own = {**PROVIDER_OPTIONS.get(provider, {}), **(CAPTURING if capture else {})}
    try:
        return ort.InferenceSession(
            str(path),
            options,
            providers=[(provider, own)],
            disabled_optimizers=SLOWER_FUSIONS,
        )
    except Exception as error:  # ONNX Runtime's errors have no class of their own
        raise StartupError(
            f"{path}: ONNX Runtime refuses this graph: {reason_of(error)}: export the bundle again"
        ) from error


def reason_of(error: Exception) -> str:
    """Return an error of ONNX Runtime without its codes, paths and places in its source."""
    text = NOISE.sub("", f"{error or type(error).__name__}")
    return shorten_line(text, LONGEST_ERROR)


def installed_provider(wanted: Provider) -> str:
    """Return ONNX Runtime's name of the provider; `auto` prefers CUDA.

    Raise StartupError if the provider was asked for by name and is not installed.
    """
    available = ort.get_available_providers()
    if wanted is Provider.auto:
        wanted = Provider.cuda if PROVIDERS[Provider.cuda] in available else Provider.cpu
    if PROVIDERS[wanted] not in available:
        names = [provider.value for provider, name in PROVIDERS.items() if name in available]
        raise StartupError(
            f"provider {wanted.value} is not installed; choose one of: auto, {', '.join(names)}"
        )
    return PROVIDERS[wanted]


class Device(NamedTuple):
    """Memory that is not the host's: ONNX Runtime's name of it, and a provider that can move it."""

    memory: str
    provider: str


GPU = Device("cuda", PROVIDERS[Provider.cuda])


def cache_device(provider: str) -> Device | None:
    """Return the device in whose memory a provider computes; None: in the host's, over arrays.

    TensorRT computes in CUDA's memory, but would build an engine for each size of what it moves.
    """
    return None if provider == PROVIDERS[Provider.cpu] else GPU


def usable_provider(bundle: Bundle, wanted: Provider) -> str:
    """Return the provider that runs the bundle's graphs on this machine.

    A GPU provider can be installed where there is no GPU; ONNX Runtime then falls back to another
    one. Raise StartupError if that happens to a provider that was asked for by name.
    """
    name = installed_provider(wanted)
    if name == PROVIDERS[Provider.cpu]:
        return name
    graphs = next(iter(bundle.manifest.precisions.values()))
    found: str = open_graph(bundle.path(graphs["encoder"]), name).get_providers()[0]
    if found != name and wanted is not Provider.auto:
        raise StartupError(
            f"provider {wanted.value} is installed but finds no device it can use; choose auto,"
            f" which takes {found} here"
        )
    return found
