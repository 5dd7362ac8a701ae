"""Documents: each sentence is decoded as if it had been sent alone, and the rest is kept."""

import random
import shutil

import numpy as np
import pytest

from tests.conftest import TINY, edit_tokenizer, opened, sender
from tests.documentation import events_of

DOCUMENT = "  attention\n\n\ttransformer\r\nheed \n***\n   \nqueue\n\n"
LINES = ["attention", "transformer", "heed", "queue"]
WORDS = ["blue", "green", ".", "red", ",", "?"]
ALL_KINDS = {"kinds": ["encoder", "decoder", "cross"], "layers": [0], "heads": [0]}
OPTIONS = [
    {},
    {"beam_size": 4, "num_hypotheses": 3, "length_penalty": 0.5},
    {"temperature": 1.0, "seed": 5, "num_hypotheses": 2},
    {"target_prefix": "N", "max_new_tokens": 5, "top_log_probs": 2},
    {"allowed_targets": ["HH IY1 D", "K Y UW1"], "beam_size": 3, "num_hypotheses": 2},
]


def ask(post, **body):
    status, answer = post("/v1/decode", **body)
    assert status == 200, answer
    return answer


def refuse(post, **body):
    status, problem = post("/v1/decode", split="sentences", **body)
    return status, problem["detail"]


def at(offset):
    return f"(in the sentence at offset {offset}, from which other offsets count)"


TOO_MANY = "/source splits into more than 256 sentences, which is the limit: send"


@pytest.fixture(scope="module")
def marked(tmp_path_factory):
    """POST to the tiny model with another source vocabulary: words and marks."""
    bundle = shutil.copytree(TINY, tmp_path_factory.mktemp("bundles") / "marked")

    def change(tokenizer):
        pieces = [*list(tokenizer["model"]["vocab"])[:4], *WORDS]
        tokenizer["model"]["vocab"] = {piece: i for i, piece in enumerate(pieces)}
        tokenizer["normalizer"] = {"type": "Lowercase"}
        steps = [{"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "Isolated"}]
        tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}

    edit_tokenizer(bundle, "source.tokenizer.json", change)
    with opened(bundle, self_check=False) as client:
        yield sender(client)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(options) or "greedy")
def test_a_document_gets_the_answers_of_its_sentences_asked_alone(post, options):
    answer = ask(post, source=DOCUMENT, split="sentences", **options)
    (result,) = answer["results"]
    alone = [ask(post, source=line, **options)["results"][0] for line in LINES]
    for sentence, line, expected in zip(result["sentences"], LINES, alone, strict=True):
        assert DOCUMENT[sentence["start"] : sentence["end"]] == line
        assert sentence["source_tokens"] == expected["source_tokens"]
        for found, hypothesis in zip(sentence["hypotheses"], expected["hypotheses"], strict=True):
            assert found["token_ids"] == hypothesis["token_ids"]
            assert found["text"] == hypothesis["text"]
            assert found["score"] == pytest.approx(hypothesis["score"], abs=1e-4)
    for rank, joined in enumerate(result["hypotheses"]):
        expected = DOCUMENT
        for line, each in zip(LINES, alone, strict=True):
            expected = expected.replace(line, each["hypotheses"][rank]["text"])
        assert joined["text"] == expected
        scores = [each["hypotheses"][rank]["score"] for each in alone]
        assert joined["score"] == pytest.approx(sum(scores), abs=1e-3)
    tokens = [len(each["token_ids"]) for one in alone for each in one["hypotheses"]]
    assert answer["usage"] == {
        "source_tokens": result["source_tokens"],
        "target_tokens": sum(tokens),
    }
    assert result["source_tokens"] == sum(map(len, LINES))


def test_permuted_lines_permute_the_sentences_and_documents_keep_their_order(post):
    shuffled = random.Random(0).sample(LINES, len(LINES))
    sources = ["\n".join(LINES), "\n\n".join(shuffled), LINES[0]]
    results = ask(post, source=sources, split="sentences")["results"]
    joined = [result["hypotheses"][0]["text"] for result in results]
    text_of = dict(zip(LINES, joined[0].split("\n"), strict=True))
    assert joined[1] == "\n\n".join(text_of[line] for line in shuffled)
    assert joined[2] == text_of[LINES[0]]


def test_without_split_the_answer_is_as_before(post):
    plain = ask(post, source=LINES)
    assert ask(post, source=LINES, split="none") == plain
    assert plain["results"][0].keys() == {"hypotheses", "source_tokens"}


def test_sentences_of_a_line_are_decoded_apart_and_their_tokens_index_the_document(marked):
    document = " Red green. Blue?\tGreen blue red.\n"
    answer = ask(marked, source=document, split="sentences", attention=ALL_KINDS)
    (result,) = answer["results"]
    spans = [(each["start"], each["end"]) for each in result["sentences"]]
    assert [document[slice(*span)] for span in spans] == ["Red green.", "Blue?", "Green blue red."]
    for (start, end), sentence in zip(spans, result["sentences"], strict=True):
        (alone,) = ask(marked, source=document[start:end], attention=ALL_KINDS)["results"]
        (found,), (expected,) = sentence["hypotheses"], alone["hypotheses"]
        for block, other in zip(found["attention"], expected["attention"], strict=True):
            np.testing.assert_allclose(block["data"], other["data"], atol=1e-5)
            sides = [("rows", block["kind"] == "encoder"), ("columns", block["kind"] != "decoder")]
            for side, source in sides:
                by = start if source else 0
                for token, moved in zip(other[side], block[side], strict=True):
                    assert moved["id"] == token["id"]
                    places = token["start"], token["end"]
                    shifted = tuple(None if place is None else place + by for place in places)
                    assert (moved["start"], moved["end"]) == shifted
        columns = next(b["columns"] for b in found["attention"] if b["kind"] == "cross")
        for token in columns:
            assert document[token["start"] : token["end"]].lower() == token["text"]


def test_a_sentence_longer_than_the_model_is_split_after_its_clauses(marked):
    clause = "red green blue green red,"
    document = f"{clause} {clause} {clause} {clause} Green"
    (result,) = ask(marked, source=document, split="sentences")["results"]
    spans = [(each["start"], each["end"]) for each in result["sentences"]]
    assert [document[slice(*span)] for span in spans] == [
        f"{clause} {clause} {clause}",
        f"{clause} Green",
    ]
    assert all(each["source_tokens"] <= 20 for each in result["sentences"])


def test_a_sentence_without_clauses_is_split_at_spaces(marked):
    (result,) = ask(marked, source="red " * 45, split="sentences")["results"]
    assert [each["source_tokens"] for each in result["sentences"]] == [20, 20, 5]


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        ({"source": [[5, 6]]}, 422, "/split needs texts, but source holds ids: send"),
        ({"source": "heed\n\nb7"}, 422, f"/source {at(6)} has '7' at offset 1"),
        ({"source": ["a", f"b\n{'a' * 65}"]}, 413, f"/source/1 {at(2)} has 65 tokens; the limit"),
        (
            {"source": f"a{'、7' * 150_000}"},
            422,
            f"the first 10 faults: /source {at(0)} has '、' at offset 1",
        ),
        ({"source": "a\n" * 300}, 413, TOO_MANY),
        ({"source": [" "] * 257}, 413, TOO_MANY),
        ({"source": ["a\na"] * 129}, 413, TOO_MANY),
    ],
)
def test_what_cannot_be_split_is_refused_with_its_place(post, body, status, detail):
    found, said = refuse(post, **body)
    assert (found, said[: len(detail)]) == (status, detail)


@pytest.mark.parametrize(
    ("path", "body", "offered"),
    [
        ("/v1/decode", {"source": "heed\n" * 40}, True),  # tokenized
        ("/v1/decode", {"source": ["heed\n" * 2000]}, True),  # too many characters to tokenize
        ("/v1/decode", {"source": "a" * 65, "split": "sentences"}, False),
        ("/v1/decode", {"source": [[5] * 65]}, False),
        ("/v1/encode", {"source": "heed\n" * 40}, False),
        ("/v1/score", {"source": "heed", "target": "N " * 65}, False),
    ],
)
def test_a_text_that_is_too_long_may_be_split_where_that_is_possible(post, path, body, offered):
    status, problem = post(path, **body)
    assert status == 413
    said = 'shorten it, or send "split": "sentences" to decode its sentences one by one'
    assert (said in problem["detail"]) is offered


def test_every_bad_sentence_is_named_ten_at_most(post):
    status, problem = post("/v1/decode", source=["7\na\n8"] * 9, split="sentences")
    assert status == 422
    pointers = [fault["pointer"] for fault in problem["errors"]]
    assert pointers == [f"/source/{i // 2}" for i in range(10)]


def test_parts_of_long_sentences_count_as_sentences(marked):
    assert refuse(marked, source="red " * 20 * 300) == (413, f"{TOO_MANY} fewer at a time")


def test_sentences_count_as_rows_of_the_queue(post, limit):
    limit(max_rows=5)
    status, detail = refuse(post, source="a\nb\nc", beam_size=2)
    assert status == 413
    assert detail == (
        "this request takes 6 rows (sources, or their sentences, times beams or samples) and the"
        " limit is 5: send less, or lower beam_size or num_hypotheses"
    )


@pytest.mark.parametrize("options", [{}, {"beam_size": 3}], ids=["tokens", "beams"])
def test_events_say_which_part_of_the_document_they_translate(client, options):
    body = {"model": "g2p-en", "source": ["heed", DOCUMENT], "split": "sentences", **options}
    answer = client.post("/v1/decode", json={**body, "stream": True})
    *events, (last, done) = events_of(answer.text)
    assert last == "done"
    texts = {}
    for _, event in events:
        key = event["result"], event["sentence"], event["start"], event["end"]
        texts[key] = event["stable"] if options else texts.get(key, "") + event["text"]
    joined = list(body["source"])
    for (result, _, start, end), text in sorted(texts.items(), reverse=True):
        joined[result] = joined[result][:start] + text + joined[result][end:]
    assert joined == [result["hypotheses"][0]["text"] for result in done["results"]]
    assert texts.keys() == {
        (i, j, sentence["start"], sentence["end"])
        for i, result in enumerate(done["results"])
        for j, sentence in enumerate(result["sentences"])
    }
    plain = client.post("/v1/decode", json=body).json()
    assert [each["hypotheses"][0]["text"] for each in plain["results"]] == joined
