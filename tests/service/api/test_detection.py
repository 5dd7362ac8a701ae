"""Languages that are detected, in texts whose language is known."""

import httpx2
import pytest
from libretranslatepy import LibreTranslateAPI

from tests.conftest import KEY, opened, sender
from tests.service.api.conftest import copy_of

pytest.importorskip("lingua")
from service.api.protocols.libretranslate.detection import READ, Detector, beginning

TEXTS = {
    "als_Latn": "Sot moti është i bukur dhe ne po dalim për një shëtitje.",
    "arb_Arab": "الطقس جميل اليوم وسنخرج في نزهة",
    "azj_Latn": "Bu gün hava gözəldir və biz gəzməyə çıxırıq.",
    "ell_Grek": "Ο καιρός είναι καλός σήμερα και βγαίνουμε έξω.",
    "eng_Latn": "The weather is fine today and we are going out.",
    "est_Latn": "Täna on ilus ilm ja me läheme jalutama.",
    "fra_Latn": "Il fait beau aujourd'hui et nous sortons.",
    "khk_Cyrl": "Өнөөдөр цаг агаар сайхан байгаа тул бид гадуур зугаалж байна.",
    "lvs_Latn": "Šodien ir labs laiks, un mēs ejam pastaigāties.",
    "pes_Arab": "امروز هوا خوب است و ما بیرون می‌رویم",
    "rus_Cyrl": "Сегодня хорошая погода, и мы идём гулять.",
    "spa_Latn": "Hoy hace buen tiempo y vamos a salir.",
    "swh_Latn": "Leo hali ya hewa ni nzuri na tunatoka nje.",
    "zho_Hant": "今天天氣很好，我們要出去走走。",
}
OTHERS = ("ast_Latn", "kac_Latn", "tat_Cyrl", "heb_Hebr", "hin_Deva", "deu_Latn")


@pytest.fixture(scope="module")
def nllb():
    return Detector([*TEXTS, *OTHERS])


@pytest.mark.parametrize("code", TEXTS)
def test_a_language_has_the_code_of_the_model(nllb, code):
    best, *others = nllb.detect(TEXTS[code])
    assert best.language == code
    assert len(others) < 3
    confidences = [each.confidence for each in [best, *others]]
    assert confidences == sorted(confidences, reverse=True)
    assert 0 < sum(confidences) <= 100.1


@pytest.mark.parametrize(
    ("codes", "code", "text"),
    [
        (["fr", "en", "zh"], "en", "eng_Latn"),
        (["en_XX", "zh_CN", "es_XX"], "zh_CN", "zho_Hant"),
        (["sv", "no"], "no", "no"),
        (["en_GB", "en_US", "fr"], "en_GB", "eng_Latn"),
        (["xx", "en"], "en", "fra_Latn"),  # the only one that can be
    ],
)
def test_only_languages_of_the_model_are_detected(codes, code, text):
    texts = {**TEXTS, "no": "I dag er det fint vær, og vi skal ut og gå en tur."}
    assert Detector(codes).detect(texts[text])[0].language == code


@pytest.mark.parametrize(
    ("codes", "text", "code"),
    [
        (["fra_Latn"], "fra_Latn", "fra_Latn"),  # alone, but one of many
        (["spa_Latn"], "fra_Latn", "spa_Latn"),
        (["ell_Grek", "spa_Latn"], "fra_Latn", "spa_Latn"),
    ],
)
def test_of_some_languages_the_best_has_its_confidence_among_all(nllb, codes, text, code):
    every = {each.language: each.confidence for each in nllb.detect(TEXTS[text])}
    best = nllb.detect(TEXTS[text], codes)[0]
    assert (best.language, best.confidence) == (code, every.get(code, best.confidence))
    assert (best.confidence > 50) == (code == text)


def test_a_language_with_several_codes_has_one_that_is_asked_for():
    two = Detector(["en", "eng_Latn", "fr"])
    found = [two.detect(TEXTS["eng_Latn"], codes)[0] for codes in (["en"], ["eng_Latn"], [])]
    assert [each.language for each in found] == ["en", "eng_Latn", "en"]
    assert found[0].confidence == found[1].confidence > 50


@pytest.mark.parametrize(("codes", "code"), [(["xx", "fr"], "fr"), (["de", "en"], "en")])
def test_without_text_one_of_some_languages_is_taken(codes, code):
    assert Detector(["en", "xx", "de", "fr"]).detect("12", codes) == [(code, 0.0)]


@pytest.mark.parametrize("text", TEXTS)
def test_a_single_language_is_not_detected_but_taken(text):
    assert Detector(["xx", "fr"]).detect(TEXTS[text]) == [("fr", 0.0)]


@pytest.mark.parametrize(("codes", "code"), [(["fr", "en"], "en"), (["fr", "de"], "fr")])
def test_of_a_text_without_letters_nothing_is_detected(codes, code):
    assert Detector(codes).detect("12 * 3 = 36") == [(code, 0.0)]


def test_the_beginning_of_texts_is_read(nllb):
    long = [TEXTS["fra_Latn"] * 20, TEXTS["spa_Latn"] * 100_000]
    assert beginning(long) == (long[0] + "\n" + long[1])[:READ]
    assert nllb.detect(beginning([long[0] * 2, long[1]]))[0].language == "fra_Latn"


@pytest.fixture(scope="module")
def http(protocol_server):
    with httpx2.Client(base_url=protocol_server) as client:
        yield client


def test_the_client_detects_languages(protocol_server, http):
    stock = LibreTranslateAPI(protocol_server, KEY)
    best, *_ = found = stock.detect(TEXTS["fra_Latn"])
    assert best["language"] == "fra_Latn"
    body = {"q": [TEXTS["fra_Latn"]], "api_key": KEY}
    assert http.post("/detect", json=body).json() == found
    assert http.post("/detect", json={"q": "hello"}).status_code == 403
    assert (
        http.post("/detect", data={"api_key": KEY}).json()["error"].endswith("missing q parameter")
    )
    answer = http.post(
        "/detect",
        content=b'{"q": "\\ud800", "api_key": "%s"}' % KEY.encode(),
        headers={"Content-Type": "application/json"},
    )
    assert (answer.status_code, answer.json()["error"][:2]) == (400, "q ")


@pytest.mark.parametrize(
    "fields",
    [
        {"q": "hello one two"},
        {"q": ["hello one", "***"]},
        {"q": f'<p data-note="{TEXTS["fra_Latn"]}">hello <b>one two</b></p>', "format": "html"},
    ],
    ids=["text", "texts", "html"],
)
def test_a_detected_language_translates_as_if_it_were_given(http, fields):
    translate = sender(http, target="heb_Hebr", api_key=KEY)
    status, document = translate("/translate", source="auto", **fields)
    detected = document.pop("detectedLanguage")
    assert (status, document) == translate("/translate", source="eng_Latn", **fields)
    assert isinstance(detected, list) == isinstance(fields["q"], list)
    for each in detected if isinstance(detected, list) else [detected]:
        assert each["language"] == "eng_Latn"
        assert 0 < each["confidence"] <= 100


def test_a_language_is_detected_although_the_model_does_not_need_it(needs_none):
    with opened(needs_none, protocols="libretranslate") as client:
        translate = sender(client, q="one two three", target="fr")
        status, document = translate("/translate", source="auto")
        detected = document.pop("detectedLanguage")
        assert (status, document) == translate("/translate", source="en")
    assert (status, detected["language"]) == (200, "en")
    assert detected["confidence"] > 0


def test_only_languages_that_lead_to_the_target_are_detected(tiny, tmp_path):
    """`red` might be English or Spanish."""
    pairs = {"one": ("es", "fr"), "other": ("en", "de")}
    bundles = [
        copy_of(tiny, tmp_path, name, languages={"source": {source: [5]}, "target": {target: [7]}})
        for name, (source, target) in pairs.items()
    ]
    with opened(*bundles, protocols="libretranslate") as client:
        for source, target in pairs.values():
            body = {"q": "red", "source": "auto", "target": target}
            answer = client.post("/translate", json=body).json()
            every = client.post("/detect", json={"q": "red"}).json()
            found = {each["language"]: each for each in every}
            assert answer["detectedLanguage"] == found[source]
            assert found[source]["confidence"] > 0
