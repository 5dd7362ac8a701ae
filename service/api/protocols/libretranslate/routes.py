"""The API of LibreTranslate (https://docs.libretranslate.com), for models that have languages.

Languages have the codes that their model gives them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel

from service.api.answering.examples import Examples
from service.api.answering.respond import Computed, respond
from service.api.endpoints.decode.body import DecodeRequest
from service.api.endpoints.decode.endpoint import run_decode
from service.api.endpoints.models import Health
from service.api.protocols.libretranslate.bodies import (
    Detection,
    DetectRequest,
    FrontendSettings,
    Language,
    LibreTranslateError,
    Named,
    TranslateAnswer,
    TranslateRequest,
)
from service.api.protocols.libretranslate.detection import Detected, beginning, detector_of
from service.api.protocols.libretranslate.forms import MULTIPART, URL_ENCODED, read_form
from service.api.protocols.libretranslate.pairs import (
    NO_LANGUAGES,
    Unsupported,
    choose_model,
    pairs_of,
    sources_into,
    sources_of,
)
from service.api.reading.call import ROW_OPTIONS, Call
from service.api.reading.json_route import JSON_TYPE, JsonRoute, read_body, receive_body
from service.api.reading.languages import AUTO, first_pair
from service.api.reading.selection import can_align
from service.api.reading.texts import texts_of
from service.api.reading.validation_errors import Body, validate
from service.errors import Fault, HeedError, Invalid, NotFound, TooLarge, Unauthorized, shorten
from service.formats.json import JSON, Document
from service.http.messages.problems import LONGEST_DETAIL, ErrorForm, encode_json
from service.http.middleware.answers import negotiate
from service.text.markup.document import check_markup, read_document
from service.text.tokenizer import check_unicode, has_letters

TRANSLATE = "/translate"
DETECT = "/detect"
KEY_IN_BODY = (TRANSLATE, DETECT)  # paths whose clients send api_key in the body


def write_error(error: HeedError, _path: str, _request_id: str) -> bytes:
    """Return the body of an error as a LibreTranslateError. Clients compare the words of two errors
    with those of LibreTranslate: a field is missing, and a language is not supported."""
    text = "; ".join(fault.sentence for fault in error.faults) or error.detail
    document = {"error": shorten(text, LONGEST_DETAIL)}
    if isinstance(error, Unsupported):
        document["advice"] = error.remedy
    if missing := [fault.pointer for fault in error.faults if fault.detail == "is required"]:
        name = missing[0].removeprefix("/")
        advice = document["error"]
        document = {"error": f"Invalid request: missing {name} parameter", "advice": advice}
    return encode_json(document)


ERRORS = ErrorForm(
    [
        *(TRANSLATE, DETECT, "/languages", "/frontend", "/health", "/spec"),
        *("/suggest", "/translate_file"),
    ],
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
DETECT_EXAMPLES: Examples = {"text": {"summary": "A text", "value": {"q": "Hello."}}}


def bodies_of(body: type[BaseModel], shown: Examples) -> dict[str, Any]:
    """Return the OpenAPI description of a body, as JSON and as forms."""
    form = {"schema": body.model_json_schema()}
    return {JSON: {**form, "examples": shown}, URL_ENCODED: form, MULTIPART: form}


@router.post(
    TRANSLATE,
    response_model=TranslateAnswer,
    summary="Translate as LibreTranslate does",
    openapi_extra={"requestBody": {"content": bodies_of(TranslateRequest, EXAMPLES)}},
)
async def translate(call: Call) -> Response:
    """Translate a text or several, sentence by sentence. Sentences without letters and digits stay
    as they are.

    The body may be JSON or a form; forms may put fields into the query of the address.
    """
    negotiate(call, [JSON])
    body = await read_request(call, TranslateRequest)
    check_key(call, body.api_key)
    every = pairs_of(call.service.registry.served.values())
    source, detected = body.source, None
    if source == AUTO and AUTO not in (codes := sources_into(every, body.target)):
        texts = await read_texts(call, body)
        detected = (await detect_languages(call, sources_of(every), texts, codes))[0]
        source = detected.language
    model = choose_model(every, source, body.target)
    own = model.manifest.decoding.beam_size
    asked = DecodeRequest.model_construct(
        model=model.name,
        source=body.q,
        source_language=None if source == AUTO else source,
        target_language=body.target,
        beam_size=max(own, 1 + body.alternatives),
        num_hypotheses=1 + body.alternatives,
        markup=body.markup,
        split="sentences",
    )
    try:
        decoded = await run_decode(asked, call, "/q", whole=True, apart=not can_align(model))
    except (Invalid, TooLarge) as error:
        raise error.change_faults(partial(name_format, body.alternatives, own)) from None

    def write() -> Document:
        return write_translation(body, decoded.write()["results"]) | write_detected(body, detected)

    size = decoded.size + (sum(map(len, texts_of(body.q))) if body.markup else 0)
    return await respond(call, Computed(write, decoded.answers, size))


async def read_texts(call: Call, body: TranslateRequest) -> list[str]:
    """Return the texts of a request, without their markup. Raise Invalid or TooLarge."""
    given, kind = texts_of(body.q), body.markup
    if kind is None:
        return given

    def work() -> list[str]:
        check_markup(given, kind, "/q")
        for text in given:
            check_unicode(text, "/q")
        return [read_document(text, kind, has_letters, "/q").text for text in given]

    try:
        return await call.compute_reading(work, sum(map(len, given)))
    except (Invalid, TooLarge) as error:
        raise error.change_faults(partial(name_format, 0, 1)) from None


async def detect_languages(
    call: Call, every: tuple[str, ...], texts: Iterable[str], codes: Sequence[str] = ()
) -> list[Detected]:
    """Return the most probable of these languages, best first, or of those `codes` of them, if some
    are given. Raise Invalid."""
    text = beginning(texts)
    check_unicode(text, "/q")
    return await call.compute_limited(lambda: detector_of(every).detect(text, codes))


def write_detected(body: TranslateRequest, detected: Detected | None) -> Document:
    """Return the field of an answer that says which language was detected, if one was."""
    if detected is None:
        return {}
    document = detected._asdict()
    return {"detectedLanguage": document if isinstance(body.q, str) else [document] * len(body.q)}


async def read_request(call: Call, form: type[Body]) -> Body:
    """Return the fields of a JSON body or a form. Raise UnsupportedMediaType, Unparsable or
    Invalid."""
    content = await receive_body(call)
    content_type = call.headers.get("content-type", "")
    if JSON_TYPE.match(content_type.lower()):
        return await read_body(call, form, content)

    def work() -> Body:
        fields = read_form(content_type, content, call.url.query)
        lines = {name: each.replace("\r\n", "\n") for name, each in fields.items()}
        return validate(form, lines, strict=False)

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


def name_format(alternatives: int, beams: int, fault: Fault) -> Fault:
    """Return a fault of our field for markup as one of format, and limits of fields that are not
    here, of rows and tokens, as those of texts and their alternatives. To lower `alternatives` is
    advised where it helps: a text has at least as many rows as the model's own `beams`."""
    lower = ", or lower alternatives"
    fewer_rows, fewer_tokens = lower * (alternatives >= beams), lower * (alternatives > 0)
    detail = fault.detail.replace(f", or lower {ROW_OPTIONS}", fewer_rows)
    detail = detail.replace(", or lower max_new_tokens", fewer_tokens)
    if fault.pointer == "/max_new_tokens":
        why = detail.partition(":")[0]
        return Fault("/q", f"{why}: send fewer{fewer_tokens}")
    pointer = "/format" if fault.pointer == "/markup" else fault.pointer
    return replace(fault, pointer=pointer, detail=detail)


def write_translation(body: TranslateRequest, results: Sequence[Document]) -> Document:
    """Return the answer, given the result of each text."""
    ranked = [[each["text"] for each in result["hypotheses"]] for result in results]
    truncated = [is_truncated(result["hypotheses"]) for result in results]
    best = [each[0] for each in ranked]
    others = [[each for each in dict.fromkeys(texts) if each != texts[0]] for texts in ranked]
    single = isinstance(body.q, str)
    document: Document = {"translatedText": best[0] if single else best}
    if body.alternatives:
        document["alternatives"] = others[0] if single else others
    if any(truncated):
        document["truncated"] = truncated[0] if single else truncated
    return document


def is_truncated(hypotheses: Sequence[Document]) -> bool:
    """Return whether one of the hypotheses of a text was cut."""
    return any(each["finish_reason"] == "length" for each in hypotheses)


@router.post(
    DETECT,
    response_model=list[Detection],
    summary="Detect a language as LibreTranslate does",
    openapi_extra={"requestBody": {"content": bodies_of(DetectRequest, DETECT_EXAMPLES)}},
)
async def detect(call: Call) -> list[Detected]:
    """Return the most probable languages of a text, best first, among those that the models
    translate from. Its first 1,000 characters are read.

    The body may be JSON or a form; forms may put fields into the query of the address.
    """
    negotiate(call, [JSON])
    body = await read_request(call, DetectRequest)
    check_key(call, body.api_key)
    codes = sources_of(pairs_of(call.service.registry.served.values()))
    if not codes:
        raise Invalid("no model of this service lists source languages, so none is detected")
    return await detect_languages(call, codes, texts_of(body.q))


@router.get("/languages", summary="List the languages as LibreTranslate does")
async def list_languages(call: Call) -> list[Language]:
    """List all languages: none if no model has any. A model that lists no source language
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
    """Return the settings, which say that files are not translated."""
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


@router.get("/spec", include_in_schema=False)
async def show_spec(call: Call) -> dict[str, Any]:
    """Return the OpenAPI document, where LibreTranslate has its own."""
    prefix = call.scope["root_path"]
    return {**call.app.openapi(), **({"servers": [{"url": prefix}]} if prefix else {})}
