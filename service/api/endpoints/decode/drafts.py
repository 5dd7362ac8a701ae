"""Read the drafts of /v1/decode, by which greedy search takes fewer steps."""

from collections.abc import Sequence
from functools import partial

from service.api.endpoints.decode.body import DecodeRequest
from service.api.reading.call import Call
from service.api.reading.faults import Faults
from service.api.reading.texts import Sources, TextField, count_texts, how_many
from service.bundle.manifest import SHORTLISTED, GraphName
from service.errors import MOST_FAULTS, Invalid, NotFound, TooLarge
from service.search.options import ABSENT, SearchOptions
from service.serving.model import Model
from service.text.tokenizer import Tokenizer
from service.text.tokens import Tokens

DRAFTS: GraphName = "draft_step"
OF_SOURCE = "source"  # a draft: the source itself


def check_draft(body: DecodeRequest, model: Model, search: SearchOptions, faults: Faults) -> None:
    """Raise NotFound if the model cannot use drafts. Add a fault for each field that contradicts
    one."""
    if why := why_no_drafts(model):
        raise NotFound("not_supported", f"model {model.name} cannot use a draft: {why}")
    whose = ", the model's own" if body.beam_size is None else ""
    for_phrases = body.required and body.beam_size is None  # they are refused themselves
    beams = search.beam_size > 1 and not for_phrases
    several = "needs several beams, which cannot be combined with draft: omit one"
    one = "and a draft leads to one hypothesis: omit num_hypotheses, or omit draft"
    needs = {
        "beam_size": (beams, f"is {search.beam_size}{whose}: set beam_size to 1, or omit draft"),
        "num_hypotheses": (body.num_hypotheses > 1, f"is {body.num_hypotheses}, {one}"),
        "temperature": (search.samples, "draws tokens, which a draft cannot foresee: omit one"),
        "required": (bool(body.required), several),
        "glossary": (bool(body.glossary), several),
        "ablate": (bool(body.ablate), "cannot be combined with draft: omit one"),
    }
    for name in [each for each, (wrong, _) in needs.items() if wrong]:
        faults.add(Invalid.at(f"/{name}", needs[name][1]))
    if body.draft == OF_SOURCE:
        return
    for name in [each for each in ("split", "markup") if getattr(body, each) not in ("none", None)]:
        detail = f'has one for each whole source: send "source", or omit {name}'
        faults.add(Invalid.at("/draft", detail))


def why_no_drafts(model: Model) -> str:
    """Return why a model cannot use drafts and what to do, empty if it can."""
    graphs, manifest = model.engine.opened.graphs, model.manifest
    if "output" in graphs or (manifest.shortlists and graphs >= SHORTLISTED):
        return "it decodes by lists of tokens, which drafts do not have; omit draft"
    if DRAFTS in graphs:
        return ""
    if manifest.config.recurrent:
        return "its decoder is an SSRU, which reads one token at a step; omit draft"
    if any(DRAFTS in each for each in manifest.precisions.values()):
        return f"{model.engine.opened.provider} computes, not a CPU; omit draft"
    return "its bundle lacks the graph draft_step; export or convert it again, or omit draft"


async def read_drafts(
    call: Call,
    body: DecodeRequest,
    model: Model,
    search: SearchOptions,
    sources: Sources,
    faults: Faults,
) -> tuple[Sources, list[SearchOptions]]:
    """Return the sources whose drafts are valid, and the search of each, with its draft in ids of
    targets. Add the errors of the other drafts."""
    if body.draft == OF_SOURCE:
        read = partial(sources_as_targets, model, sources.tokens)
        drafts = await call.compute_reading(read, sum(len(each.text) for each in sources.tokens))
    else:
        value, count = body.draft or "", count_texts(body.source)
        if (found := count_texts(value)) != count:
            holds = f"holds {how_many(found, 'draft')} for {how_many(count, 'source')}"
            faults.add(Invalid.at("/draft", f"{holds}: give one for each source"))
            return sources, []
        field = TextField("/draft", value, model.target)
        read = partial(tokenize_drafts, field, sources.results, faults)
        given = await call.compute_reading(read, sum(map(len, value)))
        sources = sources.only(given)
        drafts = [given[result] for result in sources.results]
    eos_id = model.manifest.eos_id
    return sources, [search._replace(draft=ended(draft, eos_id)) for draft in drafts]


def ended(draft: list[int], eos_id: int) -> tuple[int, ...]:
    """Return a draft with eos at its end, or () if it has no other id."""
    ids = draft[:-1] if draft[-1:] == [eos_id] else draft
    return (*ids, eos_id) if ids else ()


def tokenize_drafts(
    field: TextField, results: Sequence[int], faults: Faults
) -> dict[int, list[int]]:
    """Return the ids of each valid draft of these results. Add the errors of the others, up to
    MOST_FAULTS unless the request is partial."""
    items = field.items
    drafts: dict[int, list[int]] = {}
    refused = 0
    for result in dict.fromkeys(results):  # a source that is split has several
        item = items[result]
        try:
            drafts[result] = tokenize_draft(field.tokenizer, item, field.place(result))
        except (Invalid, TooLarge) as error:
            faults.add(error, result)
            refused += 1
        if refused == MOST_FAULTS and not faults.partial:
            break
    return drafts


def tokenize_draft(tokenizer: Tokenizer, item: str | list[int], pointer: str) -> list[int]:
    """Return the ids of a draft, ABSENT where its text has a token that targets lack: it is only a
    guess. Raise Invalid or TooLarge."""
    if isinstance(item, str):
        return with_absent(tokenizer.guess(item, pointer))
    return tokenizer.read_ids(item, pointer).ids if item else []


def sources_as_targets(model: Model, sources: Sequence[Tokens]) -> list[list[int]]:
    """Return the tokens of the sources' texts as ids of targets, ABSENT where targets lack them."""
    texts = [[token.id for token in source.tokens if token.start is not None] for source in sources]
    if model.has_one_vocabulary:
        return texts
    return [with_absent(model.source.ids_in(model.target, ids)) for ids in texts]


def with_absent(ids: Sequence[int | None]) -> list[int]:
    return [ABSENT if each is None else each for each in ids]
