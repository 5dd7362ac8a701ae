"""The endpoints of models: a request becomes entries, their answers become JSON."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Body, Request, Response

from service.api import examples, requests, responses
from service.api.answer_size import LOWER, check_attention, check_size
from service.api.serialize import (
    pool,
    to_base64,
    usage_of,
    write_hypotheses,
    write_score,
    write_tokens,
)
from service.api.steps import (
    answers_to,
    model_of,
    read,
    read_targets,
    respond,
    search_of,
)
from service.api.stream import Stream
from service.engine.messages import Answer, Entry
from service.errors import Invalid, NotFound

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
    selection = model.selection(body.attention)
    more = {"num_hypotheses": body.num_hypotheses, "top_log_probs": body.top_log_probs}
    search = await search_of(model, body, **more)
    seconds, sources = await read(request, model.source, body.source, "/source")
    steps, count = search.max_new_tokens, search.num_hypotheses
    read_at_most = model.reads(len(search.target_prefix), steps)
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


@router.post(
    "/v1/encode",
    response_model=responses.EncodeAnswer,
    summary="Encode sources",
    tags=["models"],
)
async def encode(
    body: Annotated[requests.EncodeRequest, Body(openapi_examples=examples.ENCODE)],
    request: Request,
) -> Response:
    """The encoder's output for every source: a vector a token, or one for all."""
    model = model_of(request, body.model)
    seconds, sources = await read(request, model.source, body.source, "/source")
    d_model = model.engine.bundle.manifest.config.d_model
    if body.dimensions is not None and body.dimensions > d_model:
        detail = f"{body.dimensions} is more than a vector has: give 1 to {d_model}"
        raise Invalid.at("/dimensions", detail)
    lengths = [len(source.tokens) if body.pooling == "none" else 1 for source in sources]
    check_size(request, 4 * d_model * sum(lengths), ", or pool")
    entries = [Entry(source_ids=np.array(source.ids)) for source in sources]
    answers = await answers_to(request, model, entries)
    field = "hidden" if body.pooling == "none" else "embedding"

    def write() -> dict[str, Any]:
        how = (body.pooling, body.normalize, body.dimensions)
        vectors = [pool(answer.encoded, *how) for answer in answers]
        results = [
            {
                field: to_base64(vector) if body.encoding == "base64" else vector,
                "shape": list(vector.shape),
                "tokens": [token.text for token in source.tokens],
            }
            for source, vector in zip(sources, vectors, strict=True)
        ]
        return {"model": model.name, "results": results}

    return await respond(request, write, seconds, answers)


@router.post(
    "/v1/tokenize",
    response_model=responses.TokenizeAnswer,
    summary="Split texts into tokens",
    tags=["models"],
)
async def tokenize(
    body: Annotated[requests.TokenizeRequest, Body(openapi_examples=examples.TOKENIZE)],
    request: Request,
) -> Response:
    """What the encoder reads of a text, or what the decoder is to predict; specials included."""
    model = model_of(request, body.model)
    tokenizer = model.source if body.side == "source" else model.target
    seconds, texts = await read(request, tokenizer, body.text, "/text")

    def write() -> dict[str, Any]:
        return {"model": model.name, "results": [write_tokens(text) for text in texts]}

    return await respond(request, write, seconds, size=sum(map(len, texts)))


@router.post(
    "/v1/detokenize",
    response_model=responses.DetokenizeAnswer,
    summary="Join tokens to texts",
    tags=["models"],
)
async def detokenize(
    body: Annotated[requests.DetokenizeRequest, Body(openapi_examples=examples.DETOKENIZE)],
    request: Request,
) -> Response:
    """The text of ids, and where in it each token stands."""
    model = model_of(request, body.model)
    tokenizer = model.source if body.side == "source" else model.target
    seconds, texts = await read(request, tokenizer, body.token_ids, "/token_ids")

    def write() -> dict[str, Any]:
        results = [{"text": text.text, **write_tokens(text)} for text in texts]
        return {"model": model.name, "results": results}

    return await respond(request, write, seconds, size=sum(map(len, texts)))
