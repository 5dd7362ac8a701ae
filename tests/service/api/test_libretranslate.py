"""Translations by the stock client of LibreTranslate and by forms, compared with /v1/decode."""

import json
import re
import shutil
import sys
import urllib.error
import urllib.request
from urllib.parse import urlencode

import httpx2
import pytest
from libretranslatepy import LibreTranslateAPI

from service.api.protocols.libretranslate.routes import name_format
from service.api.reading.answer_size import SEND_LESS, SEND_LESS_OR_LOWER
from service.api.reading.call import ROW_OPTIONS
from service.errors import Fault
from tests.conftest import ALIGNMENT, KEY, edit_manifest, opened, sender
from tests.service.api.conftest import copy_of

TAG = re.compile("<[^>]*>")
PAIR = {"source": "eng_Latn", "target": "heb_Hebr"}
URLENCODED = "application/x-www-form-urlencoded"
FIRST_SENTENCE = "(in the sentence at offset 0, from which other offsets count)"
TEXT = "hello one\n\n  two three\n***\n"


@pytest.fixture(scope="module")
def stock(protocol_server):
    return LibreTranslateAPI(protocol_server, KEY)


@pytest.fixture(scope="module")
def http(protocol_server):
    with httpx2.Client(base_url=protocol_server) as client:
        yield client


@pytest.fixture(scope="module")
def translate(http):
    """Translate by JSON: (q, **fields) -> status, document."""
    send = sender(http, **PAIR, api_key=KEY)
    return lambda q, **fields: send("/translate", q=q, **fields)


@pytest.fixture(scope="module")
def decode(http):
    """The texts that /v1/decode gives for the sentences of a text, best first, as long as the
    model can make them."""

    def decode(source, **options):
        languages = {"source_language": PAIR["source"], "target_language": PAIR["target"]}
        body = {"model": "translator", "source": source, "split": "sentences", **languages}
        body["max_new_tokens"] = 39  # with that of the language, 40
        headers = {"Authorization": f"Bearer {KEY}"}
        answer = http.post("/v1/decode", json={**body, **options}, headers=headers).json()
        return [each["text"] for each in answer["results"][0]["hypotheses"]]

    return decode


def refusal_of(call, *arguments):
    """The status of a refusal, its error, and its advice if it has some."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        call(*arguments)
    with refused.value as answer:
        return answer.code, *json.load(answer).values()


def test_the_client_translates_sentence_by_sentence(stock, decode):
    translated = stock.translate(TEXT, *PAIR.values())
    assert translated == decode(TEXT)[0]
    lines = translated.split("\n")
    assert [lines[1], lines[2][:2], lines[3:]] == ["", "  ", ["***", ""]]


def test_the_client_gets_the_languages_and_where_they_lead(stock, http):
    languages = {each["code"]: each for each in stock.languages()}
    card = http.get("/v1/models/translator", headers={"Authorization": f"Bearer {KEY}"}).json()
    sources, targets = card["languages"]["source"], card["languages"]["target"]
    assert set(languages) == {*sources, *targets}
    for code, each in languages.items():
        assert each["name"] == code
        assert each["targets"] == (targets if code in sources else [])


def test_a_model_that_needs_no_source_language_translates_from_all_that_it_lists(needs_none):
    with opened(needs_none, protocols=["libretranslate"]) as client:
        listed = {each["code"]: each["targets"] for each in client.get("/languages").json()}
        assert listed == {code: ["en", "fr"] for code in ("en", "fr")}
        send = sender(client, q="red", target="fr")
        found = [send("/translate", source=code) for code in listed]
    assert found[0][0] == 200
    assert found == found[:1] * 2


@pytest.mark.parametrize(
    ("languages", "wrong", "part"),
    [
        (("en", "heb_Hebr"), "en", "did you mean en_XX?"),
        (("zz", "heb_Hebr"), "zz", "give one, such as arb_Arab, en_XX"),
        (("eng_Latn", "zho_Hans"), "zho_Hans", "it is not a target language here: give "),
        (("auto", "zho_Hans"), "zho_Hans", "it is not a target language here: give "),
    ],
)
def test_the_client_is_told_which_languages_there_are(stock, languages, wrong, part):
    """The error is LibreTranslate's, word for word."""
    status, error, advice = refusal_of(stock.translate, "hello", *languages)
    assert (status, error) == (400, f"{wrong} is not supported")
    assert advice.startswith(part)
    assert advice.endswith(" GET /languages lists all")


@pytest.mark.parametrize(
    ("languages", "wrong", "advice"),
    [
        (("en", "es"), "es", "give one, such as pt;"),
        (("en", "fr"), "fr", "give one, such as pt;"),  # and not fra_Latn
        (("eng_Latn", "fr"), "fr", "did you mean fra_Latn?"),
        (("auto", "fr"), "fr", "did you mean fra_Latn?"),
        (("auto", "es"), "es", "give one, such as deu_Latn, fra_Latn, pt;"),
        (("pt", "fra_Latn"), "pt", "it is not a source language here: give one, such as"),
        (("fra_Latn", "pt"), "fra_Latn", "it is not a source language here: did you mean"),
        (("en", "eng_Latn"), "eng_Latn", "it is not a target language here: give one, such as pt;"),
    ],
)
def test_advised_languages_make_a_pair_with_the_other(two_models, languages, wrong, advice):
    source, target = languages
    answer = two_models.post("/translate", json={"q": "red", "source": source, "target": target})
    assert (answer.status_code, answer.json()["error"]) == (400, f"{wrong} is not supported")
    assert answer.json()["advice"].startswith(advice)


@pytest.fixture(scope="module")
def two_models(tiny, tmp_path_factory):
    """A service that translates from `en` into one language, and from `eng_Latn` into two."""
    folder = tmp_path_factory.mktemp("two")
    pairs = {
        "one": {"source": {"en": [5]}, "target": {"pt": [7]}},
        "other": {"source": {"eng_Latn": [5]}, "target": {"fra_Latn": [7], "deu_Latn": [8]}},
    }
    bundles = [copy_of(tiny, folder, name, languages=each) for name, each in pairs.items()]
    with opened(*bundles, protocols="libretranslate") as client:
        yield client


@pytest.mark.parametrize(
    ("key", "part"),
    [("wrong", "not an API key"), ("ключ", "not an API key"), (None, "send it as api_key")],
)
def test_the_client_needs_a_key_of_the_service(protocol_server, key, part):
    stock = LibreTranslateAPI(protocol_server, key)
    status, error = refusal_of(stock.translate, "hello", *PAIR.values())
    assert status == 403
    assert part in error


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/detect", 405),
        ("POST", "/languages", 405),
        ("POST", "/health", 405),
        ("POST", "/spec", 405),
        ("POST", "/frontend/settings", 405),
        ("GET", "/translate", 405),
        ("GET", "/spec", 200),
        ("GET", "/languages", 200),
        ("GET", "/health", 200),
        ("GET", "/frontend/settings", 200),
    ],
)
def test_paths_have_the_methods_of_libretranslate(http, method, path, status):
    headers = {"Authorization": f"Bearer {KEY}"}
    answer = http.request(method, path, headers=headers)
    assert answer.status_code == status
    assert ("error" in answer.json()) == (status == 405)


@pytest.mark.parametrize("missing", ["q", "source", "target"])
def test_a_missing_parameter_is_named_as_libretranslate_does(http, missing):
    fields = {"q": "hello", **PAIR, "api_key": KEY}
    del fields[missing]
    for sent in ({"data": fields}, {"json": fields}):
        answer = http.post("/translate", **sent)
        assert answer.status_code == 400
        assert answer.json()["error"] == f"Invalid request: missing {missing} parameter"
        assert answer.json()["advice"] == f"{missing} is required"


def test_a_key_is_asked_for_before_languages_are_told(http):
    answer = http.post("/translate", json={"q": "hello", "source": "xx", "target": "yy"})
    assert answer.status_code == 403


def test_a_key_may_be_in_a_header(translate, http):
    headers = {"Authorization": f"Bearer {KEY}"}
    answer = http.post("/translate", json={**PAIR, "q": "hello"}, headers=headers)
    assert answer.json() == translate("hello")[1]
    headers = {"Authorization": f"Bearer {KEY}s"}
    assert http.post("/translate", json={**PAIR, "q": "hello"}, headers=headers).status_code == 403


def test_a_language_is_not_detected_without_the_package_and_the_client_is_told(
    translator, monkeypatch
):
    monkeypatch.setitem(sys.modules, "lingua", None)
    with opened(translator, protocols="libretranslate") as client:
        asked = {"q": "hello", "source": "auto", "target": "heb_Hebr"}
        for path, body in (("/detect", {"q": "hello"}), ("/translate", asked)):
            answer = client.post(path, json=body)
            assert answer.status_code == 400
            assert "install heed-server[detect], or name the language" in answer.json()["error"]


FORM = {**PAIR, "q": "hello\r\n&=+% \r\none two", "alternatives": "1", "api_key": KEY}
FILES = {name: (None, value) for name, value in FORM.items()}
MULTIPART = "multipart/form-data; boundary=x"
PART = b"--x\r\n\r\nq\r\n"
# A search for the name in all of these headers would take minutes.
LONG_HEADERS = b"--x\r\n" + b"content-disposition:" * 50_000 + b"\r\n\r\nq\r\n--x--"


@pytest.mark.parametrize(
    ("query", "sent"),
    [
        ({}, {"data": FORM}),
        ({}, {"files": FILES}),
        (FORM, {"data": {"q": "another", "format": ""}}),
        (FORM, {"files": {"q": (None, "another")}}),
    ],
    ids=["form", "parts", "query", "query and parts"],
)
def test_forms_are_read_as_json_is(http, translate, query, sent):
    answer = http.post(f"/translate?{urlencode(query)}", **sent)
    assert answer.status_code == 200
    expected = translate(FORM["q"].replace("\r\n", "\n"), alternatives=1)
    assert answer.json() == expected[1]
    assert answer.json()["translatedText"].split("\n")[1] == "&=+% "


@pytest.mark.parametrize(
    ("content_type", "content", "part"),
    [
        ("text/xml", b"<q/>", f"text/xml: send application/json, {URLENCODED}"),
        (URLENCODED, b"q=%ff", "UTF-8"),
        (URLENCODED, b"q=a&" * 99, "at most 64 fields"),
        (URLENCODED, b"q=a&q=b", "q is given more than once: send it once"),
        (URLENCODED, b"source=eng_Latn&q=", "q is required"),
        (URLENCODED, b"alternatives=x", "alternatives must be an integer"),
        (MULTIPART, PART * 65 + b"--x--", "at most 64 fields"),
        (MULTIPART, PART * 64, "no end"),
        ("multipart/form-data", b"--x\r\n\r\n--x--", "no end"),
        ("multipart/form-data", b"\r\n" * 99, "no end"),
        (MULTIPART, b"--x\r\n", "no end"),
        (MULTIPART, b"--x\r\n\r\nq\r\n--x--", "no name"),
        pytest.param(MULTIPART, LONG_HEADERS, "at most 1024", id="headers"),
        ("application/json", b"[]", "the body must be a JSON object"),
        ("application/json", b'{"q": "\\ud800!"}', "source is required"),
        ("application/json", b"{", "not valid JSON"),
    ],
)
def test_what_is_wrong_with_a_body_is_said(http, content_type, content, part):
    answer = http.post("/translate", content=content, headers={"Content-Type": content_type})
    assert answer.status_code == 400
    assert part in "; ".join(answer.json().values())


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"q": []}, "q must have 1 or more items"),
        ({"q": ["hello", 3]}, "q/1 must be a string"),
        ({"q": "hello word"}, f"q {FIRST_SENTENCE} has"),
        ({"q": ["hello", "hello word"]}, f"q/1 {FIRST_SENTENCE} has"),
        (
            {"q": ["***", "<b>hello</b>hello word"], "format": "html"},
            "q/1 (in the text 'hello word', where offsets count) has 'word' at offset 6",
        ),
        ({"q": ["hello"] * 257}, "splits into more than 256 sentences"),
        (
            {"q": ["hello"] * 256, "alternatives": 63},
            "this request takes 16384 rows (sources, or their sentences, times beams or samples)"
            " and the limit is 4096: send less, or lower alternatives",
        ),
        ({"q": "hello", "format": "pdf"}, "format must be 'text' or 'html'"),
        ({"q": "hello", "alternatives": 64}, "alternatives must be at most 63"),
        ({"q": "hello", "formt": "html"}, "formt is not a field: did you mean format?"),
        ({"q": "hello", "text": "hello"}, "text is not a field: did you mean q?"),
        ({"q": "hello", "qqq": 1}, "qqq is not a field; the fields are q, source, target, format"),
        ({"q": ["<b>" * 2501] * 2, "format": "html"}, "q has 5002 tags, and the limit is 5000"),
    ],
)
def test_wrong_fields_are_named(translate, fields, part):
    status, document = translate(**fields)
    assert (status, list(document)) == (400, ["error"])
    assert part in document["error"]


@pytest.mark.parametrize("alternatives", [0, 3, 4])
def test_limits_of_rows_and_tokens_are_of_texts_and_alternatives(alternatives):
    """There are no fields for beams and tokens. The model has 4 beams of its own."""

    def described(pointer, detail):
        return name_format(alternatives, 4, Fault(pointer, detail)).sentence

    fewer_tokens = ", or lower alternatives" if alternatives else ""
    said = described("/max_new_tokens", 'may take 9 bytes: "max_new_tokens": 3 would fit')
    assert said == f"q may take 9 bytes: send fewer{fewer_tokens}"
    assert described("", SEND_LESS_OR_LOWER) == f"the body {SEND_LESS}{fewer_tokens}"
    fewer_rows = ", or lower alternatives" if alternatives == 4 else ""
    said = described("", f"takes 9 rows: send less, or lower {ROW_OPTIONS}")
    assert said == f"the body takes 9 rows: send less{fewer_rows}"


def test_texts_without_letters_stay_and_half_a_surrogate_pair_is_refused(translate, http):
    assert translate(["", "***", "\u2764"]) == (200, {"translatedText": ["", "***", "\u2764"]})
    body = json.dumps({**PAIR, "q": "\ud800", "api_key": KEY})
    answer = http.post("/translate", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"][:2]) == (400, "q ")


@pytest.mark.parametrize("count", [1, 3])
def test_alternatives_are_the_next_hypotheses(translate, decode, count):
    expected = decode("hello", beam_size=1 + max(1, count), num_hypotheses=1 + count)
    _, document = translate("hello", alternatives=count)
    assert document["translatedText"] == expected[0]
    assert document["alternatives"] == expected[1:]
    _, documents = translate(["hello", "***"], alternatives=count)
    assert documents["translatedText"] == [expected[0], "***"]
    assert documents["alternatives"] == [expected[1:], []]


def test_html_is_translated_between_its_tags_by_a_model_that_cannot_align(translate, decode):
    page = "<p>hello\n <b>one two</b> <code>one</code><br>three"
    first, second, third = (decode(each)[0] for each in ("hello", "one two", "three"))
    translated = f"<p>{first}\n <b>{second}</b> <code>one</code><br>{third}</p>"
    status, document = translate(page, format="html")
    assert (status, document["translatedText"]) == (200, translated)
    assert translate("<hr>", format="html")[1] == {"translatedText": "<hr>"}


@pytest.fixture(scope="module")
def aligning(translator, tmp_path_factory):
    """Translate by a model that can align: (q, **fields) -> status, document."""
    bundle = shutil.copytree(translator, tmp_path_factory.mktemp("aligning") / "translator")
    edit_manifest(bundle, alignment=ALIGNMENT)
    with opened(bundle, protocols="libretranslate") as client:
        send = sender(client, **PAIR)
        yield lambda q, **fields: send("/translate", q=q, **fields)


def every(answer):
    """All translations of an answer for one text, best first."""
    status, document = answer
    assert status == 200, document
    return [document["translatedText"], *document.get("alternatives", [])]


@pytest.mark.parametrize("fields", [{}, {"alternatives": 2}])
def test_html_is_translated_with_its_tags_inside_by_a_model_that_can_align(aligning, fields):
    page = '<p>hello <b class="c">one <i>two</i></b></p>\n<p>three <code>x</code> one</p>'
    pages = every(aligning(page, format="html", **fields))
    firsts, seconds = (every(aligning(each, **fields)) for each in ("hello one two", "three one"))
    for written, first, second in zip(pages, firsts, seconds, strict=True):
        assert sorted(TAG.findall(written)) == sorted(TAG.findall(page))
        above, below = TAG.sub("", written).split("\n")
        assert above == first
        assert "".join(below.replace("x", "").split()) == second
