"""Lines without letters and digits stay as they are: a model would invent a target for them.

The model `letters` reads letters and signs, and some invisible characters as a space, as
sentencepiece does. `tolerant` reads others as unknown, as NLLB does. `signs` reads no letters.
"""

from functools import partial

import pytest

from tests.conftest import edit_manifest, edit_tokenizer, opened
from tests.documentation import events_of
from tests.service.api.bodies import tensor_of
from tests.service.api.conftest import copy_of

LETTERS, SIGNS = ["a", "b", "\u200d", "-", "*", "\u2581"], ["-", "*", ".", "/", "\u2581", "+"]
INVISIBLE = ["\u00ad", "\u200b", "\u200b\u00ad", "\u2060", "\u200d"]
LINES = ["---", "* * *", "-", "\U0001f606", "?!", "\u2026", "\u2014 \u2014", *INVISIBLE]
PAIR = {"source": "aaa", "target": "bbb"}


def read_characters(bundle, characters, tolerant=False):
    """Let a bundle read these characters, one by one, and invisible ones as spaces. `tolerant`:
    let it read others, too, as unknown."""

    def change(tokenizer):
        special = list(tokenizer["model"]["vocab"])[:4]
        tokenizer["model"]["vocab"] = {each: i for i, each in enumerate([*special, *characters])}
        spaces = {"type": "Replace", "pattern": {"Regex": "[ \u00ad\u200b\u2060]+"}}
        tokenizer["normalizer"] = {**spaces, "content": "\u2581"}
        every = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "invert": False}
        tokenizer["pre_tokenizer"] = {**every, "behavior": "Isolated"}
        if tolerant:
            tokenizer["added_tokens"] = tokenizer["added_tokens"][:3]

    if tolerant:
        edit_manifest(bundle, unknown_id=None)
    edit_tokenizer(bundle, "source.tokenizer.json", change)
    return bundle


@pytest.fixture(scope="module")
def client(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("characters")
    languages = {"source": {"aaa": [4]}, "target": {"bbb": [7]}}
    of_signs = {"source": {"ccc": [4]}, "target": {"ddd": [7]}}
    bundles = [
        read_characters(copy_of(tiny, folder, "letters", languages=languages), LETTERS),
        read_characters(copy_of(tiny, folder, "tolerant"), LETTERS, tolerant=True),
        read_characters(copy_of(tiny, folder, "signs", languages=of_signs), SIGNS),
    ]
    with opened(*bundles, protocols="libretranslate,open-inference") as client:
        yield client


@pytest.fixture(scope="module")
def decode(client):
    def decode(source, model="letters", **options):
        answer = client.post("/v1/decode", json={"model": model, "source": source, **options})
        assert answer.status_code == 200, answer.text
        return answer.json()["results"]

    return decode


@pytest.fixture(scope="module")
def text_of(decode):
    """The text of a source that is decoded alone."""
    return lambda source, **options: decode(source, **options)[0]["hypotheses"][0]["text"]


@pytest.mark.parametrize("model", ["letters", "tolerant"])
@pytest.mark.parametrize("line", LINES)
def test_a_line_without_letters_stays_in_its_text(decode, text_of, line, model):
    source = f"ab\n{line}\n  {line}\nba"
    (result,) = decode(source, model, split="sentences")
    spans = [source[each["start"] : each["end"]] for each in result["sentences"]]
    assert spans == ["ab", "ba"]
    first, last = text_of("ab", model=model), text_of("ba", model=model)
    expected = f"{first}\n{line}\n  {line}\n{last}"
    assert result["hypotheses"][0]["text"] == expected


@pytest.mark.parametrize("line", [*LINES, "", " \n"])
def test_a_text_without_letters_stays_as_it_is(decode, text_of, line):
    nothing, something = decode([line, "ab"], split="sentences", beam_size=2, num_hypotheses=2)
    kept = {"text": line, "score": 0.0, "finish_reason": "eos"}
    assert nothing == {"hypotheses": [kept], "source_tokens": 0, "sentences": []}
    assert len(something["hypotheses"]) == 2
    assert decode(line, split="sentences")[0] == nothing


def test_a_stream_of_a_text_without_letters_ends_with_it(client):
    body = {"model": "letters", "source": "---", "split": "sentences", "stream": True}
    ((name, done),) = events_of(client.post("/v1/decode", json=body).text)
    assert (name, done["results"][0]["hypotheses"][0]["text"]) == ("done", "---")


def test_a_part_of_a_long_sentence_without_letters_stays(decode):
    """Its tokens are more than the model can read, so that it is cut at spaces."""
    source = "ab " + "- " * 30 + "* ba"
    (result,) = decode(source, split="sentences")
    parts = [source[each["start"] : each["end"]] for each in result["sentences"]]
    assert len(parts) == 2
    assert all(set(part) & {"a", "b"} for part in parts)
    gap = source[result["sentences"][0]["end"] : result["sentences"][1]["start"]]
    assert gap.strip() in result["hypotheses"][0]["text"]
    assert len(gap) > 9


@pytest.mark.parametrize("end", ["", "b"])
def test_parts_without_letters_count_as_sentences(client, end):
    """Each takes as long to find as one that is decoded."""
    body = {"model": "letters", "source": f"a{' -' * 100_000}{end}", "split": "sentences"}
    answer = client.post("/v1/decode", json=body)
    assert answer.status_code == 413
    assert "splits into more than 256 sentences" in answer.json()["detail"]


@pytest.mark.parametrize("line", ["---", "* * *", "-a-", "a"])
def test_signs_of_the_vocabulary_are_decoded_if_they_are_the_whole_source(decode, line):
    assert decode(line)[0]["source_tokens"] == len(line)


@pytest.mark.parametrize("path", ["/v1/decode", "/v1/encode", "/v1/attention"])
@pytest.mark.parametrize(
    ("model", "line"),
    [
        *(("letters", line) for line in [*INVISIBLE, " "]),
        *(
            ("tolerant", line)
            for line in [*INVISIBLE, " ", "\U0001f606", "\ufe0f", "\u0301", "?! \u2026"]
        ),
    ],
)
def test_what_the_vocabulary_lacks_entirely_is_refused_alone(client, path, model, line):
    answer = client.post(path, json={"model": model, "source": line})
    assert answer.status_code == 422
    expected = f"/source {line!r} holds no token; send a text with at least one"
    assert answer.json()["detail"] == expected


@pytest.mark.parametrize("source", ["\u0433", "a\U0001f606", "\U0001f606-", "\u00ada"])
def test_a_text_with_something_to_read_is_decoded_with_what_is_unknown(decode, source):
    assert decode(source, model="tolerant")[0]["hypotheses"][0]["tokens"]


def test_a_vocabulary_of_signs_is_decoded_line_by_line(decode, text_of):
    lines = ["-- .-", "/", "-*-"]
    (result,) = decode("\n".join(lines), model="signs", split="sentences")
    expected = "\n".join(text_of(line, model="signs") for line in lines)
    assert result["hypotheses"][0]["text"] == expected


@pytest.mark.parametrize("form", ["text", "html"])
@pytest.mark.parametrize("line", LINES)
def test_a_translation_leaves_them(client, text_of, form, line):
    longest = partial(text_of, max_new_tokens=40)  # a translation is not limited to fewer
    start, end, between = ("<p>", "</p>", "") if form == "html" else ("", "", "\n")
    lines = [f"{start}{each}{end}" for each in ("ab", line, "ba")]
    asked = {"q": [between.join(lines), lines[1]], "format": form, **PAIR}
    answer = client.post("/translate", json=asked)
    found = [f"{start}{each}{end}" for each in (longest("ab"), line, longest("ba"))]
    assert answer.json()["translatedText"] == [between.join(found), lines[1]]


@pytest.mark.parametrize("form", ["text", "html"])
def test_a_vocabulary_of_signs_is_translated(client, text_of, form):
    longest = partial(text_of, model="signs", max_new_tokens=40)
    write = "<p>{}</p> <code>--</code>\n<p>{}</p>" if form == "html" else "{}\n\n{}"
    asked = {"q": write.format("-- .-", "/"), "format": form, "source": "ccc", "target": "ddd"}
    answer = client.post("/translate", json=asked)
    assert answer.json()["translatedText"] == write.format(longest("-- .-"), longest("/"))


def test_a_split_tensor_leaves_them(client, text_of):
    source = tensor_of("ab\n---\n\u00ad", "***")
    asked = {"inputs": [source], "parameters": {"split": "sentences"}}
    answer = client.post("/v2/models/letters/infer", json=asked).json()
    outputs = {each["name"]: each["data"] for each in answer["outputs"]}
    assert outputs["text"] == [f"{text_of('ab')}\n---\n\u00ad", "***"]
