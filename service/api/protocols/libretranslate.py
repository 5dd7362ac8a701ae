"""The API of LibreTranslate (https://docs.libretranslate.com), for models that have languages.

Languages have the codes that their model gives them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Literal, NamedTuple

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from service.api.answering.examples import Examples
from service.api.answering.steps import Computed, respond
from service.api.endpoints.decode import DecodeRequest, run_decode
from service.api.endpoints.models import Health
from service.api.protocols.forms import MULTIPART, URL_ENCODED, read_form
from service.api.protocols.html_texts import Wanted, check_html, html_texts_of, replace_texts
from service.api.reading.call import Call
from service.api.reading.field_types import Plain, Strict
from service.api.reading.json_route import JSON_TYPE, JsonRoute, read_body, receive_body, validate
from service.api.reading.languages import AUTO, NAMED, first_pair, nearest
from service.errors import Fault, HeedError, Invalid, NotFound, TooLarge, Unauthorized, shorten
from service.formats.json import JSON, Document
from service.http.messages.problems import LONGEST_DETAIL, ErrorForm, encode_json
from service.http.middleware.answers import negotiate
from service.serving.model import Model
from service.text.tokenizer import check_unicode

TRANSLATE = "/translate"
NO_LANGUAGES = "no model of this service has languages: serve one that has, by HEED_BUNDLES"
# Paths whose clients send api_key in the body. /detect then gets 404 instead of 401.
KEY_IN_BODY = (TRANSLATE, "/detect")


class TranslateRequest(Strict):
    q: Plain = Field(description="A text, or a list of texts in JSON.")
    source: str = Field(
        max_length=64, description="Code of its language, one of those that GET /languages lists."
    )
    target: str = Field(max_length=64, description="Code of the language to translate into.")
    format: Literal["text", "html"] = Field(
        default="text",
        description="html: translate the texts between tags, and leave the tags as they are.",
    )
    alternatives: int = Field(
        default=0, ge=0, le=63, description="How many other translations to return, at most."
    )
    api_key: str | None = Field(
        default=None, description="An API key, instead of the header Authorization: Bearer KEY."
    )
    secret: str | None = Field(
        default=None, description="Has no effect. LibreTranslate's own page sends it."
    )


class TranslateAnswer(BaseModel):
    translatedText: str | list[str] = Field(description="A text, or one for each of a list.")
    alternatives: list[str] | list[list[str]] | None = Field(
        default=None, description="Other translations, best first. Absent unless requested."
    )
    truncated: bool | list[bool] | None = Field(
        default=None,
        description="Whether a translation was cut at the model's longest target, for a text or for"
        " each of a list. Absent unless one was.",
    )


class Named(BaseModel):
    code: str
    name: str = Field(description="The code again.")


class Language(Named):
    targets: list[str] = Field(description="Codes that its texts can be translated into.")


class FrontendSettings(BaseModel):
    charLimit: int = Field(description="-1: only the limits of all requests apply.")
    frontendTimeout: int = Field(description="Milliseconds after a key press to wait for another.")
    apiKeys: bool = Field(description="Whether there are API keys.")
    keyRequired: bool = Field(description="Whether a request must carry one.")
    suggestions: bool
    filesTranslation: bool
    supportedFilesFormat: list[str]
    language: dict[Literal["source", "target"], Named] = Field(
        description="Languages to begin with."
    )


class LibreTranslateError(BaseModel):
    error: str = Field(description="What is wrong and what to send instead.")


def write_error(error: HeedError, _path: str, _request_id: str) -> bytes:
    """Return the body of an error as a LibreTranslateError."""
    text = "; ".join(map(fault_sentence, error.faults)) or error.detail
    return encode_json({"error": shorten(text, LONGEST_DETAIL)})


def fault_sentence(fault: Fault) -> str:
    """Return a fault as a sentence on its field, or on a text in it such as q/1."""
    return f"{fault.pointer.removeprefix('/') or 'the body'} {fault.detail}"


ERRORS = ErrorForm(
    [TRANSLATE, "/languages", "/frontend", "/health", "/detect", "/suggest", "/translate_file"],
    write_error,
    {401: 403, 413: 400, 415: 400, 422: 400},
)
router = APIRouter(
    responses={"4XX": {"model": LibreTranslateError}, "5XX": {"model": LibreTranslateError}},
    route_class=JsonRoute,
    tags=["protocols"],
)

EXAMPLES: Examples = {  # fit_to_models puts in languages of the first model that has some
    "text": {"summary": "A text", "value": {"q": "Hello.", "source": "auto", "target": "fr"}},
}
FORM = {"schema": TranslateRequest.model_json_schema()}
BODIES = {
    JSON: {**FORM, "examples": EXAMPLES},
    URL_ENCODED: FORM,
    MULTIPART: FORM,
}


@router.post(
    TRANSLATE,
    response_model=TranslateAnswer,
    summary="Translate as LibreTranslate does",
    openapi_extra={"requestBody": {"content": BODIES}},
)
async def translate(call: Call) -> Response:
    """Translate a text or several, sentence by sentence. Sentences without letters and digits stay
    as they are.

    The body may be JSON or a form; forms may put fields into the query of the address.
    """
    negotiate(call, [JSON])
    body = await read_request(call)
    check_key(call, body.api_key)
    model = choose_model(call.service.registry.served.values(), body.source, body.target)
    given = texts_at(body.q)
    size, wanted = sum(map(len, given.values())), model.source.has_text

    def split_all() -> dict[str, list[str]]:
        if body.format == "html":
            check_html([*given.values()], 1 + body.alternatives, "/q")
        return {at: parts_of(text, body.format, wanted, at) for at, text in given.items()}

    parts = await call.compute_reading(split_all, size)
    own = model.manifest.decoding.beam_size
    asked = DecodeRequest.model_construct(
        model=model.name,
        source=list(chain.from_iterable(parts.values())),
        source_language=None if body.source == AUTO else body.source,
        target_language=body.target,
        beam_size=max(own, 1 + body.alternatives),
        num_hypotheses=1 + body.alternatives,
        split="sentences",
    )
    try:
        decoded = await run_decode(asked, call, "/q", whole=True)
    except (Invalid, TooLarge) as error:
        raise error.change_faults(partial(name_text, parts, body.format)) from None

    def write() -> Document:
        return write_translation(body, given, parts, wanted, decoded.write()["results"])

    if body.format == "html":  # which is parsed again
        document = await call.compute_reading(write, size)
        return await respond(call, Computed(lambda: document, decoded.answers, size))
    return await respond(call, Computed(write, decoded.answers, size))


async def read_request(call: Call) -> TranslateRequest:
    """Return the fields of a JSON body or a form. Raise UnsupportedMediaType, Unparsable or
    Invalid."""
    content = await receive_body(call)
    content_type = call.headers.get("content-type", "")
    if JSON_TYPE.match(content_type.lower()):
        return await read_body(call, TranslateRequest, content)

    def work() -> TranslateRequest:
        fields = read_form(content_type, content, call.url.query)
        lines = {name: each.replace("\r\n", "\n") for name, each in fields.items()}
        return validate(TranslateRequest, lines, strict=False)

    return await call.compute_reading(work, len(content))


def check_key(call: Call, given: str | None) -> None:
    """Raise Unauthorized if the service has keys, and neither the body nor a header has one."""
    keys = call.service.keys
    authorization = call.headers.get("authorization")
    if keys is None:
        return
    if not given and authorization is None:
        raise Unauthorized("an API key is required: send it as api_key")
    if given:
        keys.check_key(given)
    else:
        keys.check(authorization)


def texts_at(q: str | list[str]) -> dict[str, str]:
    """Return the texts by their places in the body."""
    return {"/q": q} if isinstance(q, str) else {f"/q/{i}": text for i, text in enumerate(q)}


def parts_of(text: str, kind: str, wanted: Wanted, pointer: str) -> list[str]:
    """Return the parts of a text to translate: all of it, or, in HTML, what stands between tags and
    is `wanted`. Texts of white space are left out. Raise Invalid."""
    check_unicode(text, pointer)
    if kind == "html":
        return html_texts_of(text, wanted)
    return [text] if text.strip() else []


def name_text(parts: Mapping[str, Sequence[str]], kind: str, fault: Fault) -> Fault:
    """Return a fault of a part, /q/INDEX among all parts, as a fault of the part's text."""
    if not fault.pointer.startswith("/q/"):
        return fault
    owners = [(pointer, part) for pointer, own in parts.items() for part in own]
    pointer, part = owners[int(fault.pointer.removeprefix("/q/"))]
    where = f"(in the text {shorten(part)!r}) " if kind == "html" else ""
    return Fault(pointer, where + fault.detail)


def join(text: str, kind: str, wanted: Wanted, results: Sequence[Document]) -> Iterator[str]:
    """Yield the translations of a text, best first, given those of its parts."""
    if not results:
        yield text
    for hypotheses in zip(*(result["hypotheses"] for result in results), strict=False):
        targets = [each["text"] for each in hypotheses]
        yield replace_texts(text, targets, wanted) if kind == "html" else targets[0]


def is_truncated(results: Sequence[Document]) -> bool:
    """Return whether one of the hypotheses of a text was cut."""
    hypotheses = chain.from_iterable(result["hypotheses"] for result in results)
    return any(each["finish_reason"] == "length" for each in hypotheses)


def write_translation(
    body: TranslateRequest,
    given: Mapping[str, str],
    parts: Mapping[str, Sequence[str]],
    wanted: Wanted,
    results: Sequence[Document],
) -> Document:
    """Return the answer, given the texts, and the results of their parts one after the other."""
    left = iter(results)
    translated = {at: list(islice(left, len(parts[at]))) for at in given}
    ranked = [list(join(text, body.format, wanted, translated[at])) for at, text in given.items()]
    truncated = list(map(is_truncated, translated.values()))
    best = [each[0] for each in ranked]
    others = [[each for each in dict.fromkeys(texts) if each != texts[0]] for texts in ranked]
    single = isinstance(body.q, str)
    document: Document = {"translatedText": best[0] if single else best}
    if body.alternatives:
        document["alternatives"] = others[0] if single else others
    if any(truncated):
        document["truncated"] = truncated[0] if single else truncated
    return document


@router.get("/languages", summary="List the languages as LibreTranslate does")
async def list_languages(call: Call) -> list[Language]:
    """List all languages: none if no model has any. A model that takes no source language
    translates from `auto`."""
    every = pairs_of(call.service.registry.served.values())
    codes = dict.fromkeys(code for pairs in every for code in [*pairs.sources, *pairs.targets])
    targets = {
        code: dict.fromkeys(
            each for pairs in every if code in pairs.sources for each in pairs.targets
        )
        for code in codes
    }
    return [Language(code=code, name=code, targets=[*targets[code]]) for code in codes]


@router.get("/frontend/settings", summary="Show the settings of LibreTranslate's page")
async def show_settings(call: Call) -> FrontendSettings:
    """Return the settings, which say that files are not translated and languages not detected."""
    pair = first_pair(model.manifest for model in call.service.registry.served.values())
    if pair is None:
        raise NotFound("not_supported", f"there are no settings, since {NO_LANGUAGES}")
    source, target = (Named(code=code, name=code) for code in pair)
    has_keys = call.service.keys is not None
    return FrontendSettings(
        charLimit=-1,
        frontendTimeout=500,
        apiKeys=has_keys,
        keyRequired=has_keys,
        suggestions=False,
        filesTranslation=False,
        supportedFilesFormat=[],
        language={"source": source, "target": target},
    )


@router.get("/health", summary="Check that the service is alive, as LibreTranslate does")
async def check_health() -> Health:
    return Health(status="ok")


class Pairs(NamedTuple):
    """The languages that a model translates from and into."""

    model: Model
    sources: list[str]
    targets: list[str]


def pairs_of(models: Iterable[Model]) -> list[Pairs]:
    """Return the models that have target languages.

    One that takes no source language translates from AUTO.
    """
    found: list[Pairs] = []
    for model in models:
        languages = model.manifest.languages
        if languages.target:
            found.append(Pairs(model, list(languages.source) or [AUTO], list(languages.target)))
    return found


def choose_model(models: Iterable[Model], source: str, target: str) -> Model:
    """Return the first model that translates from one language into another. Raise Invalid."""
    every = pairs_of(models)
    if not every:
        raise Invalid.at("/target", f"cannot be chosen: {NO_LANGUAGES}")
    check_known("/source", source, [code for pairs in every for code in pairs.sources])
    check_known("/target", target, [code for pairs in every for code in pairs.targets])
    fitting = [each.model for each in every if source in each.sources and target in each.targets]
    if not fitting:
        detail = f"is {target!r}, into which no model translates from {source!r}: GET /languages"
        raise Invalid.at("/target", f"{detail} lists the targets of each language")
    return fitting[0]


def check_known(pointer: str, given: str, codes: Sequence[str]) -> None:
    """Raise Invalid if no model has a language of this code."""
    if given in codes:
        return
    why = "the service detects no language" if given == AUTO else "no model knows this language"
    near = nearest(given, codes)
    some = ", ".join(sorted(set(codes))[:NAMED])
    advice = f"did you mean {' or '.join(near)}?" if near else f"give one, such as {some};"
    raise Invalid.at(pointer, f"is {given!r}, but {why}: {advice} GET /languages lists all")
