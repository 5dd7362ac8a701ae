"""POST /v1/score."""

import numpy as np
from pydantic import BaseModel, Field
from starlette.responses import Response

from service.api.answering.examples import SIMPLE, Examples
from service.api.answering.respond import Computed, respond
from service.api.answering.responses import ModelResponse, Usage
from service.api.answering.serialize import usage_of, write_score
from service.api.reading.answer_size import TOKEN_BYTES, total_length
from service.api.reading.call import Call
from service.api.reading.faults import Faults
from service.api.reading.field_types import SourceField, TextsOrIdLists
from service.api.reading.requests import Ablate, LanguageRequest
from service.api.reading.selection import check_scores, read_ablation
from service.api.reading.texts import TextField, read_languages, read_pairs
from service.formats.json import JSON, Document
from service.http.middleware.answers import negotiate
from service.wire import Entry

EXAMPLES: Examples = {
    "pairs": {
        "summary": "Compare how probable two pronunciations are",
        "value": {"source": ["read", "read"], "target": ["R EH1 D", "R IY1 D"]},
    },
    SIMPLE: {"value": {"source": "Hello", "target": "Hello"}},
}


class ScoreRequest(LanguageRequest):
    source: SourceField
    target: TextsOrIdLists = Field(
        description="Targets to score, one for each source. An end-of-sequence token is added to"
        " texts; ids are used unchanged.",
        examples=[["AH0 T EH1 N SH AH0 N"]],
    )
    ablate: Ablate = Field(default=[])


class ScoreResult(BaseModel):
    tokens: list[str] = Field(
        description="The tokens of the target; for a text also the end-of-sequence token."
    )
    log_probs: list[float] = Field(
        description="Natural logarithm of the probability of each token, given the source and the"
        " tokens before it."
    )
    sum: float = Field(description="Sum of log_probs.")
    mean: float = Field(description="Mean of log_probs.")
    perplexity: float = Field(
        description="exp(-mean): 1 if the model is certain of every token, larger if not. At most"
        " 1.7976931348623157e308, the largest double-precision number."
    )


class ScoreAnswer(ModelResponse):
    results: list[ScoreResult] = Field(description="One for each source, in their order.")
    usage: Usage


async def score(body: ScoreRequest, call: Call) -> Response:
    """Return how probable each target is for its source: the log-probability of every token, given
    the source and the tokens before it."""
    negotiate(call, [JSON])
    return await respond(call, await run_score(body, call))


async def run_score(body: ScoreRequest, call: Call, *, padded: bool = False) -> Computed:
    """Score the targets. `padded`: each will be written with as many tokens as the longest.

    Raise the errors of the endpoint.
    """
    model = call.use_model(body.model)
    check_scores(model)
    faults = Faults()
    ablated = await read_ablation(call, body.ablate, model, faults) if body.ablate else ()
    languages = read_languages(body, model, body.source, faults)
    sources, targets = await read_pairs(
        call,
        TextField("/source", body.source, languages.source),
        [TextField("/target", body.target, model.target)],
        faults,
    )
    faults.raise_all()
    await call.hold(TOKEN_BYTES * total_length(targets, padded))
    entries = [
        Entry(
            np.array(source.ids),
            target_ids=target.ids,
            scores=True,
            language=languages.target_ids,
            ablated=ablated,
        )
        for source, target in zip(sources, targets, strict=True)
    ]
    answers = await call.submit_and_wait(model, entries)

    def write() -> Document:
        results = [write_score(*each) for each in zip(targets, answers, strict=True)]
        return {"model": model.name, "results": results, "usage": usage_of(sources, targets)}

    return Computed(write, answers)
