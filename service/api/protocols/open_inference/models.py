"""The models of the Open Inference Protocol: their inputs, parameters and outputs.

Each model of the service is several models there, one for each endpoint that shares its requests.
Parameters are the options of that endpoint, and outputs are made of the endpoint's answer.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from service.api.answering.respond import Computed
from service.api.endpoints.attention import AttentionRequest, run_attention
from service.api.endpoints.decode.body import DecodeRequest
from service.api.endpoints.decode.endpoint import run_decode
from service.api.endpoints.encode import EncodeRequest, run_encode
from service.api.endpoints.score import ScoreRequest, run_score
from service.api.protocols.open_inference.tensors import Form
from service.api.reading.call import Call
from service.api.reading.selection import ATTENTION_GRAPHS, kinds_of
from service.arrays import FloatArray
from service.attention import AttentionKind
from service.errors import Invalid
from service.serving.model import Model

NO_PARAMETERS = ("model", "source", "target")  # fields of our requests that the path or inputs hold
SOURCE = {
    "source": Form("BYTES", 1),
    "source_ids": Form("INT64", 2),
    "source_length": Form("INT64", 1),
}
TARGET = {name.replace("source", "target"): form for name, form in SOURCE.items()}

ResultDocument = dict[str, Any]  # one of the results of an endpoint's answer
ReadResult = Callable[[ResultDocument], Any]


class Condition(NamedTuple):
    """What a request must be for an output to be in its answer, and how to make it so."""

    holds: Callable[[Any], bool]
    advice: str


def is_any(_body: BaseModel) -> bool:
    return True


class Output(NamedTuple):
    """An output of a model. `read` returns its part of a result. Only models that can show the
    `kind` of attention have it."""

    form: Form
    read: ReadResult
    given: Condition = Condition(is_any, "")
    kind: AttentionKind | None = None


@dataclass(frozen=True)
class Task:
    """The task of a model: `run` answers requests of the form `body`. The model must have
    one of the graphs `needs`, if there are any. `absent` are fields that are not parameters, since
    what they answer does not fit into tensors: each with what to do instead, for a {model}."""

    body: type[BaseModel]
    run: Callable[[Any, Call], Awaitable[Computed]]
    inputs: Mapping[str, Form]
    outputs: Mapping[str, Output]
    needs: frozenset[str] = frozenset()
    absent: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def parameters(self) -> list[str]:
        hidden = {*NO_PARAMETERS, *self.absent}
        return [name for name in self.body.model_fields if name not in hidden]

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the parameters."""
        schema = self.body.model_json_schema()
        properties = {name: schema["properties"][name] for name in self.parameters}
        return {
            "type": "object",
            "properties": properties,
            "additionalProperties": False,
            "$defs": schema.get("$defs", {}),
        }


def of_hypotheses(name: str, read: Callable[[Any], Any] = lambda value: value) -> ReadResult:
    """Return a reader of a field of each hypothesis."""
    return lambda result: [read(hypothesis[name]) for hypothesis in result["hypotheses"]]


def count_drafts(name: str) -> ReadResult:
    """Return a reader of a count of tokens of drafts: 0 for a source whose draft is empty."""
    return lambda result: [hypothesis.get(name, 0) for hypothesis in result["hypotheses"]]


def is_whole(body: DecodeRequest) -> bool:
    """Return whether hypotheses have tokens: those of split texts and documents have sentences."""
    return body.split == "none" and body.markup is None


def is_drafted(body: DecodeRequest) -> bool:
    return body.draft is not None and is_whole(body)


def keeps_tokens(body: EncodeRequest) -> bool:
    return body.pooling == "none"


def pools_tokens(body: EncodeRequest) -> bool:
    return body.pooling != "none"


def count_tokens(result: ResultDocument) -> int:
    return len(result["tokens"])


WHOLE = Condition(is_whole, "omit split and markup")
DRAFTED = Condition(is_drafted, "send a draft, and omit split and markup")
TOKENS = Condition(keeps_tokens, "set pooling to none")
POOLED = Condition(pools_tokens, "set pooling to mean, max, first or last")
DECODED: dict[str, Output] = {
    "text": Output(Form("BYTES", 2), of_hypotheses("text")),
    "score": Output(Form("FP32", 2), of_hypotheses("score")),
    "finish_reason": Output(Form("BYTES", 2), of_hypotheses("finish_reason")),
    "length": Output(Form("INT64", 2), of_hypotheses("token_ids", len), WHOLE),
    "tokens": Output(Form("BYTES", 3), of_hypotheses("tokens"), WHOLE),
    "token_ids": Output(Form("INT64", 3), of_hypotheses("token_ids"), WHOLE),
    "log_probs": Output(Form("FP32", 3), of_hypotheses("log_probs"), WHOLE),
    "drafted": Output(Form("INT64", 2), count_drafts("drafted"), DRAFTED),
    "accepted": Output(Form("INT64", 2), count_drafts("accepted"), DRAFTED),
    "source_length": Output(Form("INT64", 1), itemgetter("source_tokens")),
}
ENCODED: dict[str, Output] = {
    "hidden": Output(Form("FP32", 3), itemgetter("hidden"), TOKENS),
    "embedding": Output(Form("FP32", 2), itemgetter("embedding"), POOLED),
    "length": Output(Form("INT64", 1), count_tokens),
    "tokens": Output(Form("BYTES", 2), itemgetter("tokens")),
}
SCORED: dict[str, Output] = {
    "log_probs": Output(Form("FP32", 2), itemgetter("log_probs")),
    "sum": Output(Form("FP32", 1), itemgetter("sum")),
    "mean": Output(Form("FP32", 1), itemgetter("mean")),
    "perplexity": Output(Form("FP64", 1), itemgetter("perplexity")),
    "length": Output(Form("INT64", 1), count_tokens),
    "tokens": Output(Form("BYTES", 2), itemgetter("tokens")),
}


class BlockReader(NamedTuple):
    """Reads the block of one kind of attention."""

    kind: AttentionKind

    def block(self, result: ResultDocument) -> dict[str, Any]:
        return next(each for each in result["attention"] if each["kind"] == self.kind)

    def weights(self, result: ResultDocument) -> FloatArray:
        """(L, H, rows, columns). Axes over which the weights are reduced have the size 1."""
        block = self.block(result)
        return block["data"].reshape(*matrices_of(block), *block["shape"][-2:])

    def shape(self, result: ResultDocument) -> list[int]:
        return self.block(result)["shape"][-2:]

    def rows(self, result: ResultDocument) -> list[str]:
        return [token.text for token in self.block(result)["rows"]]

    def columns(self, result: ResultDocument) -> list[str]:
        return [token.text for token in self.block(result)["columns"]]

    def is_selected(self, body: AttentionRequest) -> bool:
        return self.kind in body.attention.kinds


def matrices_of(block: dict[str, Any]) -> tuple[int, int]:
    """Return how many layers and heads a block has, 1 where they are combined."""
    sizes = dict(zip(block["axes"], block["shape"], strict=True))
    return sizes.get("layer", 1), sizes.get("head", 1)


def read_alignments(result: ResultDocument) -> NDArray[Any]:
    """Return the pairs of each matrix of cross-attention in the Pharaoh format, (L, H); (1, 1) of
    the model's own alignment."""
    block = BlockReader("cross").block(result)
    texts = [each["pharaoh"] for each in flatten(block["alignment"])]
    shape = (1, 1) if len(texts) == 1 else matrices_of(block)
    return np.array(texts, object).reshape(shape)


def flatten(nested: Any) -> Iterator[Any]:
    if not isinstance(nested, list):
        yield nested
        return
    for each in cast("list[Any]", nested):
        yield from flatten(each)


def aligns(body: AttentionRequest) -> bool:
    return body.attention.alignment is not None


def weights_outputs(kind: AttentionKind) -> dict[str, Output]:
    """Return the outputs of a kind of attention: the weights, their rows and columns before they
    are padded, and the tokens of both."""
    reader = BlockReader(kind)
    given = Condition(reader.is_selected, f"add {kind} to kinds in attention")
    return {
        kind: Output(Form("FP32", 5), reader.weights, given, kind),
        f"{kind}_shape": Output(Form("INT64", 2), reader.shape, given, kind),
        f"{kind}_rows": Output(Form("BYTES", 2), reader.rows, given, kind),
        f"{kind}_columns": Output(Form("BYTES", 2), reader.columns, given, kind),
    }


ALIGNED = Condition(aligns, "set alignment in attention, such as to argmax")
ATTENDED: dict[str, Output] = {
    **weights_outputs("cross"),
    **weights_outputs("decoder"),
    **weights_outputs("encoder"),
    "alignment": Output(Form("BYTES", 3), read_alignments, ALIGNED, "cross"),
    "target": Output(Form("BYTES", 1), itemgetter("target")),
}
# What these answer does not fit into tensors: words, events, problems, tokens with alternatives
ABSENT_FROM_DECODE = (
    *("words", "source_share", "stream", "partial", "top_log_probs"),
    *("required", "glossary", "source_final", "hold"),
)
TASKS = {
    "": Task(
        DecodeRequest,
        run_decode,
        SOURCE,
        DECODED,
        absent=dict.fromkeys(ABSENT_FROM_DECODE, "send it to /v1/decode")
        | {"attention": "use the model {model}.attention"},
    ),
    ".encode": Task(
        EncodeRequest,
        partial(run_encode, padded=True),
        SOURCE,
        ENCODED,
        absent={
            "encoding": "set binary_data_output to true for outputs in binary",
            "partial": "send it to /v1/encode",
        },
    ),
    ".attention": Task(
        AttentionRequest,
        partial(run_attention, padded=True),
        SOURCE | TARGET,
        ATTENDED,
        frozenset(ATTENTION_GRAPHS.values()),
        {"partial": "send it to /v1/attention"},
    ),
    ".score": Task(
        ScoreRequest, partial(run_score, padded=True), SOURCE | TARGET, SCORED, frozenset({"score"})
    ),
}


def outputs_of(task: Task, model: Model) -> dict[str, Output]:
    """Return the outputs that this model can give."""
    shown = {None, *kinds_of(model)}
    return {name: output for name, output in task.outputs.items() if output.kind in shown}


def read_sequences(
    values: Mapping[str, Any], side: str, required: bool, pad_id: int
) -> list[str] | list[list[int]] | None:
    """Return the sources or the targets, as a field of a body. Ids are without their padding.

    Raise Invalid if a required side is missing or has both texts and ids, if lengths do not fit the
    ids, and if ids are padded without lengths.
    """
    texts, ids, lengths = (values.get(f"{side}{part}") for part in ("", "_ids", "_length"))
    if ids is None and lengths is not None:
        raise Invalid.at(f"/{side}_length", f"has no effect without {side}_ids: send both")
    if ids is None and texts is None and required:
        detail = f"is required: send {side} (BYTES, one axis) or {side}_ids (INT64, two axes)"
        raise Invalid.at(f"/{side}", detail)
    if ids is None:
        return texts
    if texts is not None:
        raise Invalid.at(f"/{side}_ids", f"cannot be combined with {side}: send one of them")
    if lengths is None:
        check_padding(ids, side, pad_id)
        return ids
    if len(lengths) != len(ids):
        detail = f"holds {len(lengths)} lengths for {len(ids)} sequences: give one for each"
        raise Invalid.at(f"/{side}_length", detail)
    most = len(ids[0])
    wrong = (i for i, length in enumerate(lengths) if not 1 <= length <= most)
    if (place := next(wrong, None)) is not None:
        detail = f"is {lengths[place]} but {side}_ids has {most} columns: give 1 to {most}"
        raise Invalid.at(f"/{side}_length/{place}", detail)
    return [row[:length] for row, length in zip(ids, lengths, strict=True)]


def check_padding(ids: Sequence[Sequence[int]], side: str, pad_id: int) -> None:
    """Raise Invalid for a row that ends in padding."""
    padded = (i for i, row in enumerate(ids) if row[-1] == pad_id)
    if (place := next(padded, None)) is not None:
        detail = f"ends with {pad_id}, which is padding: send the lengths without it"
        raise Invalid.at(f"/{side}_ids/{place}", f"{detail} as {side}_length (INT64, one axis)")
