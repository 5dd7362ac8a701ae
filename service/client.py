"""A client of a service: texts in, dataclasses and NumPy arrays out, by the names of the API."""

import io
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from html import escape
from typing import Any, Literal, NamedTuple, Self, TypedDict, cast

import httpx2
import numpy as np
from numpy.typing import NDArray
from typing_extensions import Unpack

CELL = '<td title="{:.3f}" style="min-width: 1.5em; background: rgb(68 1 84 / {:.3f})"></td>'

SENT = {"Content-Type": "application/json"}  # httpx2's json refuses what only JSON's escapes hold

Source = str | Sequence[str] | Sequence[Sequence[int]]
Kind = Literal["encoder", "decoder", "cross"]
Reduction = Literal["none", "mean", "max"]
Measure = Literal["weight", "norm"]


class ModelOptions(TypedDict, total=False):
    model: str
    source_language: str
    target_language: str


class Selection(TypedDict, total=False):
    kinds: Sequence[Kind]
    layers: Literal["all"] | Sequence[int]
    heads: Literal["all"] | Sequence[int]
    reduce_heads: Reduction
    reduce_layers: Reduction | Literal["rollout"]
    measure: Measure
    rows: Sequence[int]
    alignment: Literal["argmax", "threshold", "model"]
    threshold: float
    decimals: int


class AblatedHeads(TypedDict):
    kind: Kind
    layer: int
    heads: Literal["all"] | Sequence[int]


class ScoreOptions(ModelOptions, total=False):
    ablate: Sequence[AblatedHeads]


class SearchOptions(ModelOptions, total=False):
    max_new_tokens: int
    beam_size: int
    length_penalty: float
    early_stopping: bool
    temperature: float
    top_k: int
    top_p: float
    seed: int
    min_new_tokens: int
    repetition_penalty: float
    no_repeat_ngram_size: int
    encoder_repetition_penalty: float
    encoder_no_repeat_ngram_size: int
    suppress_tokens: Sequence[int | Sequence[int]]
    allowed_targets: Sequence[str]
    target_prefix: str | Sequence[int]
    stop: str | Sequence[str | int]
    required: Sequence[str | Sequence[str]]
    glossary: Mapping[str, str | Sequence[str]]


class AttentionOptions(SearchOptions, ScoreOptions, total=False):
    attention: Selection


class AttributionOptions(SearchOptions, total=False):
    of: Literal["source", "heads"]
    unit: Literal["token", "word"]
    decimals: int


class DecodeOptions(AttentionOptions, total=False):
    num_hypotheses: int
    top_log_probs: int
    partial: bool
    source_final: bool
    hold: int
    words: bool
    source_share: bool
    split: Literal["none", "sentences"]
    markup: Literal["html", "xml"]
    replace_unknown: bool
    draft: str | Sequence[str] | Sequence[Sequence[int]]


class Refusal(Exception):
    """An error of the service: its problem document."""

    def __init__(self, problem: Mapping[str, Any]) -> None:
        super().__init__("{status} {code}: {detail}".format(**problem))
        self.problem = problem


class BadKey(ValueError):
    """An API key that no request can carry. Its message does not hold the key."""


class Part:
    """A part of an answer. It takes the fields that it has: a newer service may send more."""

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        names = {each.name for each in fields(cast("Any", cls))}
        given = {name: value for name, value in document.items() if name in names}
        if "attention" in names:
            blocks = map(Attention.read, document.get("attention") or [])
            given["attention"] = {block.kind: block for block in blocks}
        return cls(**given)


@dataclass(frozen=True)
class Token(Part):
    text: str
    id: int
    start: int | None
    end: int | None


@dataclass(frozen=True, eq=False)
class Attention(Part):
    """Weights of one kind, times norms if that is their `measure`, with the axes `axes`. In a
    notebook it is a heatmap: the mean of all its layers and heads."""

    kind: Kind
    layers: list[int]
    heads: list[int]
    axes: list[str]
    rows: list[Token]
    columns: list[Token]
    weights: NDArray[np.float32]
    reduce_layers: Reduction | Literal["rollout"] | None = None
    reduce_heads: Reduction | None = None
    measure: Measure = "weight"
    alignment: Any = None

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        sides = {side: [*map(Token.read, document[side])] for side in ("rows", "columns")}
        weights = np.asarray(document["data"], np.float32)
        return super().read({**document, **sides, "weights": weights})

    def _repr_html_(self) -> str:
        matrix = self.weights.mean(axis=tuple(range(self.weights.ndim - 2)))
        head = "".join(f"<th>{escape(each.text)}</th>" for each in self.columns)
        lines = [f"<caption>{self.kind} attention</caption><tr><th></th>{head}</tr>"]
        for row, weights in zip(self.rows, matrix, strict=True):
            cells = "".join(map(CELL.format, weights, weights / (matrix.max() or 1)))
            lines.append(f"<tr><th>{escape(row.text)}</th>{cells}</tr>")
        return f"<table>{''.join(lines)}</table>"


@dataclass(frozen=True)
class Hypothesis(Part):
    """A target. One of a text that was split has no tokens of its own."""

    text: str
    score: float
    finish_reason: Literal["eos", "length", "stop"]
    tokens: list[str] = field(default_factory=list[str])
    token_ids: list[int] = field(default_factory=list[int])
    log_probs: list[float] = field(default_factory=list[float])
    top_log_probs: list[list[dict[str, Any]]] | None = None
    unmet: list[str | list[str]] = field(default_factory=list[str | list[str]])
    attention: dict[Kind, Attention] = field(default_factory=dict[Kind, Attention])
    committed: dict[str, Any] | None = None
    tentative: str | None = None
    words: list[dict[str, Any]] | None = None
    drafted: int | None = None
    accepted: int | None = None


@dataclass(frozen=True)
class Result(Part):
    """The targets of a source, best first. With `partial`, a source that was refused has none, and
    its `problem`. `start`, `end` and `source` are those of a sentence."""

    hypotheses: list[Hypothesis] = field(default_factory=list[Hypothesis])
    source_tokens: int = 0
    sentences: "list[Result]" = field(default_factory=list["Result"])
    problem: dict[str, Any] | None = None
    start: int | None = None
    end: int | None = None
    source: str | None = None

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        parts = {"hypotheses": Hypothesis, "sentences": Result}
        lists = {name: [*map(each.read, document.get(name, []))] for name, each in parts.items()}
        return super().read({**document, **lists})

    @property
    def text(self) -> str:
        """The best target. Raise Refusal if the source was refused."""
        if self.problem:
            raise Refusal(self.problem)
        return self.hypotheses[0].text


@dataclass(frozen=True)
class Attended(Part):
    source: str
    target: str
    attention: dict[Kind, Attention]


@dataclass(frozen=True)
class SourceWord(Part):
    text: str
    start: int
    end: int
    tokens: list[int]


@dataclass(frozen=True)
class Foil(Part):
    """The other target of a contrast. `first` is the first token in which both differ; `lead` is
    that of the target in this token, and in all tokens."""

    target: str
    log_probs: list[float]
    first: int | None
    lead: list[float]


@dataclass(frozen=True, eq=False)
class Attributed(Part):
    """What a target loses without each of the `parts` of its source. `losses` has a row for each of
    the `tokens`, `lead_losses` one for each lead over the foil. Of heads, there is only what the
    whole target loses without each of the `heads`: (layers, heads), by kind of attention."""

    source: str
    target: str
    log_probs: list[float]
    tokens: list[Token] = field(default_factory=list[Token])
    parts: list[Token] | list[SourceWord] = field(default_factory=list[Token])
    source_share: list[float] | None = None
    losses: NDArray[np.float32] | None = None
    contrast: Foil | None = None
    lead_losses: NDArray[np.float32] | None = None
    heads: dict[str, NDArray[np.float32]] = field(default_factory=dict[str, NDArray[np.float32]])

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        blocks = {block["kind"]: block for block in document["attribution"]}
        data = {kind: np.array(block["data"], np.float32) for kind, block in blocks.items()}
        if "target" not in blocks:
            return super().read({**document, "heads": data})
        columns = blocks["target"]["columns"]
        part = SourceWord if columns and "tokens" in columns[0] else Token
        return super().read(
            {
                **document,
                "tokens": [*map(Token.read, blocks["target"]["rows"])],
                "parts": [*map(part.read, columns)],
                "losses": data["target"],
                "contrast": Foil.read(document["contrast"]) if "contrast" in document else None,
                "lead_losses": data.get("contrast"),
            }
        )


@dataclass(frozen=True)
class Score(Part):
    tokens: list[str]
    log_probs: list[float]
    sum: float
    mean: float
    perplexity: float


class Event(NamedTuple):
    """A step of a stream: `token`, `beam`, or `done`, the last one, which has the results."""

    name: str
    data: dict[str, Any]
    results: list[Result]


class Heed(ExitStack):
    """A service. Make one for all requests and threads: connections stay open until `close`. If it
    is busy, all but streams ask three times. Methods raise Refusal, or else httpx2's errors; a key
    that no header can hold raises BadKey."""

    def __init__(self, url: str = "http://127.0.0.1:8000", key: str | None = None) -> None:
        super().__init__()
        if key and not all("!" <= each <= "~" for each in key):
            raise BadKey(
                "the API key has a character that a header cannot hold: give only ASCII characters,"
                " without spaces and line ends"
            )
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = self.enter_context(httpx2.Client(base_url=url, headers=headers, timeout=65.0))

    def models(self) -> list[dict[str, Any]]:
        return checked(self._http.get("/v1/models")).json()["models"]

    def decode(self, source: Source, **options: Unpack[DecodeOptions]) -> list[Result]:
        answer = self.post("/v1/decode", source=source, **options)
        return [Result.read(each) for each in answer.json()["results"]]

    def stream(self, source: Source, **options: Unpack[DecodeOptions]) -> Iterator[Event]:
        content = json.dumps({"source": source, "stream": True, **options})
        with self._http.sse(
            "/v1/decode", method="POST", content=content, headers=SENT, max_event_size=None
        ) as events:
            checked(events.response)
            for event in events:
                data: dict[str, Any] = json.loads(event.data)
                if event.event == "error":
                    raise Refusal(data)
                yield Event(event.event, data, [*map(Result.read, data.get("results", []))])

    def attention(
        self, source: Source, target: Source | None = None, **options: Unpack[AttentionOptions]
    ) -> list[Attended]:
        """Return the attention between sources and the given targets, or those that are decoded."""
        npz = self.post("/v1/attention", "application/npz", source=source, target=target, **options)
        arrays = np.load(io.BytesIO(npz.content))
        results: list[dict[str, Any]] = json.loads(str(arrays["meta"]))["results"]
        for i, result in enumerate(results):
            for block in result["attention"]:
                block["data"] = arrays[f"{i}.0.{block['kind']}"]
        return [Attended.read(each) for each in results]

    def attribution(
        self,
        source: Source,
        target: Source | None = None,
        contrast: Source | None = None,
        **options: Unpack[AttributionOptions],
    ) -> list[Attributed]:
        """Return what the given targets, or those that are decoded, lose without parts of their
        sources."""
        answer = self.post(
            "/v1/attribution", source=source, target=target, contrast=contrast, **options
        )
        return [Attributed.read(each) for each in answer.json()["results"]]

    def score(self, source: Source, target: Source, **options: Unpack[ScoreOptions]) -> list[Score]:
        answer = self.post("/v1/score", source=source, target=target, **options)
        return [Score.read(each) for each in answer.json()["results"]]

    def post(self, path: str, accept: str = "application/json", **body: Any) -> httpx2.Response:
        """Return an answer as it was sent."""
        headers, content = {"Accept": accept, **SENT}, json.dumps(body)
        answer = self._http.post(path, content=content, headers=headers)
        for _ in range(2):
            if answer.status_code in (429, 503):
                asked = answer.headers.get("Retry-After", "")
                time.sleep(min(int(asked), 60) if asked.isdecimal() else 1)  # not a proxy's date
                answer = self._http.post(path, content=content, headers=headers)
        return checked(answer)


def checked(answer: httpx2.Response) -> httpx2.Response:
    if answer.headers.get("Content-Type") == "application/problem+json":
        raise Refusal(json.loads(answer.read()))
    return answer.raise_for_status()
