"""The endpoints that show attention: of a model, and without one."""

from collections import Counter
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Body, Request, Response

from service.api import examples, requests, responses
from service.api.answer_size import LOWER, check_attention, decoder_positions
from service.api.serialize import read_target, write_blocks
from service.api.steps import answers_to, model_of, read, read_targets, respond, search_of
from service.api.validation import read_selection
from service.engine.messages import Entry
from service.errors import Invalid
from service.formats.json import JSON, Document
from service.formats.writers import FORMS, OF_ONE
from service.http.content import negotiate
from service.tokenizer import Tokens

router = APIRouter(responses=responses.PROBLEMS)


@router.post(
    "/v1/attention",
    response_model=responses.AttentionAnswer,
    responses={200: {"content": {form: {} for form in FORMS if form != JSON}}},
    summary="Show attention weights",
    tags=["attention"],
)
async def attention(
    body: Annotated[requests.AttentionRequest, Body(openapi_examples=examples.ATTENTION)],
    request: Request,
) -> Response:
    """Attention weights of every source with its target: the one given, or the one decoded.

    The Accept header chooses the form. application/npz (read by numpy.load) and
    application/safetensors name each block `{result}.0.{kind}`; their `meta` is the JSON without
    `data`. image/svg+xml and image/png are heatmaps of one source; text/html is a page that needs
    no other file.
    """
    one = isinstance(body.source, str) or len(body.source) == 1
    forms = [form for form in FORMS if one or form not in OF_ONE]
    form = negotiate(request, forms, "this" if one else "of several sources this")
    model = model_of(request, body.model)
    selection = read_selection(body.attention, model)
    search = await search_of(model, body)
    seconds, sources = await read(request, model.source, body.source, "/source")
    targets: list[Tokens] | None = None
    if body.target is not None:
        if given := body.model_fields_set & requests.Searching.model_fields.keys() - {"model"}:
            raise Invalid.at(f"/{min(given)}", "means nothing where the target is given")
        targets = await read_targets(request, model, body.target, len(sources), seconds)
    steps = (
        [len(target.tokens) for target in targets]
        if targets
        else [search.max_new_tokens] * len(sources)
    )
    lengths = Counter(
        (len(source.tokens), n, decoder_positions(model, len(search.target_prefix), n))
        for source, n in zip(sources, steps, strict=True)
    )
    check_attention(request, model, body.attention, lengths, "" if targets else LOWER)
    entries = [
        Entry(
            source_ids=np.array(source.ids),
            search=None if targets else search,
            target_ids=targets[i].ids if targets else [],
            selection=selection,
        )
        for i, source in enumerate(sources)
    ]
    answers = await answers_to(request, model, entries)

    def write() -> Document:
        pairs = zip(entries, answers, strict=True)
        decoded = targets or [read_target(model, e, a.hypotheses[0])[0] for e, a in pairs]
        results: list[dict[str, Any]] = [
            {
                "source": source.text,
                "target": target.text,
                "attention": write_blocks(model, entry, source, target, answer.attention[0]),
            }
            for entry, source, target, answer in zip(
                entries, sources, decoded, answers, strict=True
            )
        ]
        return {"model": model.name, "results": results}

    return await respond(request, write, seconds, answers, form)
