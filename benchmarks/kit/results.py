"""The numbers of one run, as they are kept in docs/performance.json."""

from typing import Any, Literal, NotRequired, TypedDict

MeasuredPrecision = Literal["int8", "fp32"]  # Heed's names; CTranslate2 calls the second float32
Server = Literal["Heed", "CTranslate2"]
PRECISIONS: tuple[MeasuredPrecision, ...] = ("int8", "fp32")
Part = dict[str, Any]  # some fields of Results
SERVERS: tuple[Server, ...] = ("Heed", "CTranslate2")


class Comparison(TypedDict):
    """Heed and the best setting of CTranslate2 in one cell, at one precision."""

    ms: float  # median of the rounds, as in the other milliseconds
    cpu_ms: float  # CPU time of all cores together
    tokens_per_second: float
    peer: str  # the name of that setting
    peer_ms: float
    peer_cpu_ms: float
    ratio: float  # the median of the rounds' ratios; above 1 Heed is faster
    quartiles: list[float]  # the first and the third of these ratios
    cpu_ratio: float  # of the CPU milliseconds
    graphs: float  # CPU time of Heed's graphs in a bare loop, divided by Heed's
    same: int  # sources that both decode to the same tokens


class Cell(TypedDict):
    model: str
    batch: int
    beam_size: int
    int8: Comparison
    fp32: NotRequired[Comparison]


class LengthRow(TypedDict):
    source: int  # tokens
    target: int
    ms: float
    peer_ms: float


class Latencies(TypedDict):
    p50_ms: float
    p99_ms: float


class OpenLoop(Latencies):
    """Answers to requests that arrive at `rate` a second; `throughput` is answers a second, and
    `refused` the share of requests that got 429. Latencies are those of answers."""

    rate: float
    throughput: float
    refused: float


class LoadRow(TypedDict):
    share: float  # share of the rate that the slower server can answer
    Heed: OpenLoop
    CTranslate2: OpenLoop


class Streams(TypedDict):
    """Delays until the first token of a stream, and from each token to the next."""

    saturation: float  # streams a second at most
    rate: float
    refused: float  # share of the streams
    first: Latencies
    next: Latencies


class Load(TypedDict):
    subject: str  # a sentence on the weights that were served
    saturation: dict[Server, float]  # answers a second at most
    loads: list[LoadRow]
    streams: Streams
    one_connection_ms: dict[Server, float]
    engine_ms: float  # without HTTP


class Conversion(TypedDict):
    """`python -m model convert` of a checkpoint. Sizes are in bytes."""

    checkpoint: str
    bytes: int  # of its weights
    precision: str
    seconds: float
    core_seconds: float  # of all cores together: a busy machine takes longer
    peak: int  # memory of the process
    anonymous: int  # without pages of files
    bundle: int  # on disk


class Serving(TypedDict):
    """`python -m service` of a converted checkpoint. Sizes are in bytes."""

    checkpoint: str
    precision: str
    weights: int  # on disk, at this precision
    seconds: float  # until it is ready
    ready: int  # memory of all its processes as soon as it is ready, and the peak until then
    ready_peak: int
    decoded: int  # after two decodings
    shown: int  # after attention and scores, too
    shown_peak: int
    tokens_per_second: float  # one source, one beam


class Checkpoints(TypedDict):
    """Results of `python -m benchmarks.speed.checkpoints`."""

    machine: dict[str, str | int]
    own: int  # peak of converting a tiny checkpoint: that of the libraries themselves
    conversions: list[Conversion]
    servings: list[Serving]


class Alike(TypedDict):
    """Texts that two precisions decode to the same tokens. CTranslate2 may be unable to decode."""

    beam_size: int
    heed: int  # int8 and fp32
    ctranslate2: NotRequired[int]  # its int8 and float32
    control: NotRequired[int]  # Heed at fp32 and CTranslate2 at float32


class Agreement(TypedDict):
    """Results of `python -m benchmarks.speed.agreement` for one model."""

    machine: dict[str, str | int]
    family: str
    texts: int
    searches: list[Alike]


class Results(TypedDict):
    """Results of a run. A short run omits those that are NotRequired."""

    machine: dict[str, str | int]
    rounds: int
    cells: list[Cell]
    memory: NotRequired[dict[str, float]]  # peak MiB by system
    lengths: NotRequired[list[LengthRow]]
    options: NotRequired[dict[str, float]]  # shares by which options of a search lengthen a call
    attention: NotRequired[float]  # share by which attention weights lengthen a call
    slow: NotRequired[dict[str, dict[str, float]]]  # milliseconds by system and batch
    load: Load
    checkpoints: NotRequired[Checkpoints]  # which a command of its own measures
    agreement: NotRequired[list[Agreement]]  # which a command of its own measures
