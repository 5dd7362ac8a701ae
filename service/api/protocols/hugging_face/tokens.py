"""The tokens of a target in the form of text-generation-inference, in an answer and as events."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import numpy as np
from fastapi.sse import format_sse_event

from service.api.answering.stream import EventWriter, Stream, escape_line_breaks
from service.errors import HeedError
from service.formats.json import Document, to_json
from service.http.messages.problems import ErrorForm, problem
from service.search.protocol import BeamProgress, Progress
from service.serving.model import Model
from service.wire import Answer

REASONS = {"eos": "eos_token", "length": "length", "stop": "stop_sequence"}


def write_details(model: Model, hypothesis: Mapping[str, Any], seed: int | None) -> Document:
    """Return the details of a hypothesis in the answer of /v1/decode."""
    read = model.target.reader()
    pairs = zip(hypothesis["token_ids"], hypothesis["log_probs"], strict=True)
    tokens = [write_token(model, i, read(i), log_prob) for i, log_prob in pairs]
    if tokens:
        tokens[-1]["text"] += read.rest()
    return {
        "finish_reason": REASONS[hypothesis["finish_reason"]],
        "generated_tokens": len(hypothesis["token_ids"]),
        "seed": seed,
        "prefill": [],
        "tokens": tokens,
    }


def write_token(model: Model, token_id: int, text: str, log_prob: float | None) -> Document:
    (token,) = model.target.decode([token_id]).tokens
    return {
        "id": token_id,
        "text": text,
        "logprob": None if log_prob is None else np.float32(log_prob),
        "special": token.start is None,
    }


class TokenWriter(EventWriter):
    """Turns progress into an event for each token. The last one also holds the whole text, so each
    waits for the next.

    Beam search sends tokens as soon as no beam that is left has others. Their log-probs are not
    known then.
    """

    def __init__(self, stream: Stream, form: ErrorForm, seed: int | None) -> None:
        """`form` is that of an error in the stream, `seed` that of the request."""
        super().__init__(stream)
        self._form = form
        self._seed = seed
        self._read = self._model.target.reader()
        self._ids: list[int] = []  # that events were made of
        self._last: Document = {}  # the event that waits

    def _write(self, _entry: int, progress: Progress, /) -> bytes:
        if isinstance(progress, BeamProgress):
            new = [(token_id, None) for token_id in progress.stable[len(self._ids) :]]
        else:
            new = [(event.token_id, event.log_prob) for event in progress]
        return b"".join(self._add(*each) for each in new)

    def _add(self, token_id: int, log_prob: float | None) -> bytes:
        """Return the event that waited, and let that of this token wait."""
        ready = write_data(self._last) if self._last else b""
        self._ids.append(token_id)
        token = write_token(self._model, token_id, self._read(token_id), log_prob)
        self._last = {
            "index": len(self._ids),
            "token": token,
            "generated_text": None,
            "details": None,
        }
        return ready

    async def finish(self, answers: Sequence[Answer]) -> AsyncGenerator[bytes]:
        """Yield the events that are left."""
        (answer,) = answers
        best, sent = answer.hypotheses[0], len(self._ids)
        for pair in zip(best.token_ids[sent:], best.log_probs[sent:], strict=True):
            yield self._add(*pair)
        details = {
            "finish_reason": REASONS[best.finish_reason],
            "generated_tokens": len(best.token_ids),
            "input_length": len(self._entries[0].source_ids),
            "seed": self._seed,
        }
        if self._last:
            self._last["token"]["text"] += self._read.rest()
        text = self._model.target.decode(best.token_ids).text
        yield write_data({**self._last, "generated_text": text, "details": details})

    def fail(self, error: HeedError) -> bytes:
        """Return the event of the error that ends the stream."""
        content = problem(self._stream.call, error, self._form)
        return format_sse_event(data_str=escape_line_breaks(content).decode())


def write_data(document: Document) -> bytes:
    return format_sse_event(data_str=escape_line_breaks(to_json(document)).decode())
