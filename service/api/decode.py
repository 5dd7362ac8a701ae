"""The endpoints of models: a request becomes entries, their answers become JSON."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Body, Request, Response

from service.api import examples, requests, responses
from service.api.answer_size import LOWER, check_attention, check_size, decoder_positions
from service.api.serialize import usage_of, write_hypotheses
from service.api.steps import (
    answers_to,
    model_of,
    read,
    respond,
    search_of,
)
from service.api.stream import Stream
from service.api.validation import read_selection
from service.engine.messages import Answer, Entry

router = APIRouter(responses=responses.PROBLEMS)


@router.post(
    "/v1/decode",
    response_model=responses.DecodeAnswer,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
    summary="Decode sources",
    tags=["models"],
)
async def decode(
    body: Annotated[requests.DecodeRequest, Body(openapi_examples=examples.DECODE)],
    request: Request,
) -> Response:
    """Decode every source: greedily, with beams or by sampling; and, if wanted, show the attention
    of what was decoded.

    With `stream`, server-sent events. `token` {result, hypothesis, text, token, token_id, log_prob,
    top_log_probs}: the texts of a hypothesis, one after the other, are its text. Of beams, `beam`
    {result, stable, tentative}: stable text that no later event takes back, and the present best.
    At the end `done`, the whole answer, or `error`, a problem document; comments keep it open.
    """
    model = model_of(request, body.model)
    selection = read_selection(body.attention, model)
    more = {"num_hypotheses": body.num_hypotheses, "top_log_probs": body.top_log_probs}
    search = await search_of(model, body, **more)
    seconds, sources = await read(request, model.source, body.source, "/source")
    steps, count = search.max_new_tokens, search.num_hypotheses
    read_at_most = decoder_positions(model, len(search.target_prefix), steps)
    lengths = Counter((len(source.tokens), steps, read_at_most) for source in sources)
    lengths = Counter({each: count * often for each, often in lengths.items()})
    alternatives = 8 * count * len(sources) * steps * search.top_log_probs  # with their ids
    check_size(request, alternatives, f"{LOWER}, or ask for fewer top_log_probs")
    check_attention(request, model, body.attention, lengths, LOWER, alternatives)
    entries = [
        Entry(np.array(source.ids), search, selection=selection, streams=body.stream)
        for source in sources
    ]

    def write(answers: Sequence[Answer]) -> dict[str, Any]:
        results = [
            {
                "hypotheses": write_hypotheses(model, entry, source, answer),
                "source_tokens": len(source.tokens),
            }
            for entry, source, answer in zip(entries, sources, answers, strict=True)
        ]
        decoded = [hypothesis.token_ids for answer in answers for hypothesis in answer.hypotheses]
        return {"model": model.name, "results": results, "usage": usage_of(sources, decoded)}

    if body.stream:
        return await Stream(request, model, entries, write).respond()
    answers = await answers_to(request, model, entries)
    return await respond(request, lambda: write(answers), seconds, answers)
