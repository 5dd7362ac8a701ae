"""POST /v1/score"""

from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Body, Request, Response

from service.api import examples, requests, responses
from service.api.serialize import usage_of, write_score
from service.api.steps import (
    answers_to,
    model_of,
    read,
    read_targets,
    respond,
)
from service.engine.messages import Entry
from service.errors import NotFound

router = APIRouter(responses=responses.PROBLEMS)


@router.post(
    "/v1/score",
    response_model=responses.ScoreAnswer,
    summary="Score targets",
    tags=["models"],
)
async def score(
    body: Annotated[requests.ScoreRequest, Body(openapi_examples=examples.SCORE)],
    request: Request,
) -> Response:
    """The log-prob of every token of a target, given its source."""
    model = model_of(request, body.model)
    if "score" not in model.engine.opened.graphs:
        raise NotFound("not_supported", f"model {model.name} scores nothing")
    seconds, sources = await read(request, model.source, body.source, "/source")
    targets = await read_targets(request, model, body.target, len(sources), seconds)
    entries = [
        Entry(np.array(source.ids), target_ids=target.ids, scores=True)
        for source, target in zip(sources, targets, strict=True)
    ]
    answers = await answers_to(request, model, entries)

    def write() -> dict[str, Any]:
        results = [write_score(*each) for each in zip(targets, answers, strict=True)]
        return {"model": model.name, "results": results, "usage": usage_of(sources, targets)}

    return await respond(request, write, seconds, answers)
