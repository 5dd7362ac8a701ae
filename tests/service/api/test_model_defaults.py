"""Options that a request leaves to the model, compared with the same options in the request."""

import json
import shutil
from itertools import pairwise

import numpy as np
import pytest

from tests.conftest import edit_manifest, opened
from tests.documentation import events_of

OPTIONS = {
    "beam_size": 3,
    "length_penalty": 0.5,
    "early_stopping": False,
    "min_new_tokens": 4,
    "no_repeat_ngram_size": 2,
    "repetition_penalty": 1.3,
}
ORIGIN = {"checkpoint": "none", "files": {"config.json": "ab12"}, "proofs": [{"holds": True}]}
SUPPRESSED = [5, 6]
NEUTRAL = {
    "beam_size": 1,
    "length_penalty": 1.0,
    "early_stopping": True,
    "min_new_tokens": 0,
    "no_repeat_ngram_size": 0,
    "repetition_penalty": 1.0,
}
ENDS = [8, 10]  # besides the network's own
SOURCES = ["red green blue", "two", "one three"]


@pytest.fixture(scope="module")
def ask(tiny, tmp_path_factory):
    """POST to `tiny`, or to `chosen`: the same weights with decoding options of its own."""
    chosen = shutil.copytree(tiny, tmp_path_factory.mktemp("defaults") / "chosen")
    decoding = {**OPTIONS, "max_new_tokens": 12, "suppress_tokens": SUPPRESSED}
    edit_manifest(chosen, name="chosen", decoding=decoding, origin=ORIGIN)
    ends = shutil.copytree(tiny, chosen.with_name("ends"))
    decoding = {**NEUTRAL, "no_repeat_ngram_size": 1, "suppress_tokens": [5, [6, 0]]}
    decoding["max_new_tokens"] = 12
    edit_manifest(ends, name="ends", decoding=decoding, other_eos_ids=ENDS)
    with opened(tiny, chosen, ends) as client:

        def send(model, path="/v1/decode", **body):
            answer = client.post(path, json={"model": model, "source": SOURCES, **body})
            is_json = answer.headers["content-type"].endswith("json")
            document = json.loads(answer.text) if is_json else events_of(answer.text)
            return answer.status_code, document

        send.client = client
        yield send


def both(ask, path="/v1/decode", silent=(), explicit=()):
    """Results of the model with options of its own, and of the other with explicit ones."""
    found = ask("chosen", path, **dict(silent))
    given = {"max_new_tokens": 12, "suppress_tokens": SUPPRESSED, **dict(explicit)}
    expected = ask("tiny", path, **given)
    assert (found[0], expected[0]) == (200, 200), (found, expected)
    return found[1]["results"], expected[1]["results"]


def test_a_silent_request_gets_the_options_of_the_model(ask):
    found, expected = both(ask, explicit=OPTIONS)
    assert found == expected
    assert found != both(ask, explicit=NEUTRAL)[1]
    found, expected = both(ask, "/v1/attention", explicit=OPTIONS)
    assert found == expected


def test_null_is_silent(ask):
    found, expected = both(ask, silent=dict.fromkeys(OPTIONS), explicit=OPTIONS)
    assert found == expected


@pytest.mark.parametrize("name", OPTIONS)
def test_a_request_changes_one_option_and_inherits_the_others(ask, name):
    changed = {name: NEUTRAL[name]}
    found, expected = both(ask, silent=changed, explicit={**OPTIONS, **changed})
    assert found == expected


def test_sampling_has_no_beams_even_if_the_model_has(ask):
    sampling = {"temperature": 1.0, "seed": 5, "num_hypotheses": 4}
    found, expected = both(ask, silent=sampling, explicit={**OPTIONS, "beam_size": 1, **sampling})
    assert found == expected
    status, problem = ask("chosen", temperature=1.0, beam_size=3)
    assert (status, problem["errors"][0]["pointer"]) == (422, "/temperature")


def test_no_option_of_the_model_forbids_an_allowed_target(ask):
    """ "bb" and "c" hold a suppressed token and end before the model's min_new_tokens."""
    allowed = ["bb", "c", "ghghgh"]
    body = {"allowed_targets": allowed, "num_hypotheses": 3}
    status, answer = ask("chosen", **body)
    assert status == 200
    for result in answer["results"]:
        assert sorted(each["text"] for each in result["hypotheses"]) == allowed
    for name in ("min_new_tokens", "no_repeat_ngram_size"):
        status, problem = ask("chosen", **body, **{name: 1})
        assert (status, problem["errors"][0]["pointer"]) == (422, f"/{name}")


@pytest.mark.parametrize("options", [{}, {"beam_size": 3, "num_hypotheses": 3}])
def test_any_end_of_the_model_ends_a_target(ask, options):
    body = {"source": SOURCES * 9, "top_log_probs": 3, **options}
    status, answer = ask("ends", **body)
    found = [each for result in answer["results"] for each in result["hypotheses"]]
    assert status == 200
    for hypothesis in found:
        ids, ended = hypothesis["token_ids"], hypothesis["finish_reason"] == "eos"
        assert not {2, *ENDS} & {*ids[:-1]}
        assert (6, 0) not in pairwise(ids)
        assert (ids[-1] in (2, *ENDS)) == ended
    assert {*ENDS} & {hypothesis["token_ids"][-1] for hypothesis in found}
    later = ask("ends", **body, min_new_tokens=6)[1]["results"]
    assert min(len(each["token_ids"]) for result in later for each in result["hypotheses"]) > 6


def test_ends_of_the_model_are_refused_where_they_would_be_early(ask):
    status, problem = ask("ends", target_prefix=[4, ENDS[0]])
    assert (status, problem["errors"][0]["pointer"]) == (422, "/target_prefix/1")
    names = ask.client.post("/v1/detokenize", json={"model": "ends", "token_ids": [[4], ENDS[:1]]})
    text, end = (each["text"] for each in names.json()["results"])
    status, problem = ask("ends", allowed_targets=[text, end + text])
    assert (status, problem["errors"][0]["pointer"]) == (422, "/allowed_targets/1")
    assert f"({ENDS[0]}), which ends targets of this model" in problem["detail"]
    assert ask("ends", allowed_targets=[text + end])[0] == 200
    for asked, pointer in ((end + text, "/required/1"), ([text, end + text], "/required/1/1")):
        status, problem = ask("ends", required=[text, asked])
        assert (status, problem["errors"][0]["pointer"]) == (422, pointer)
        assert f"({ENDS[0]}), which ends targets of this model" in problem["detail"]
    for result in ask("ends", required=[text + end], max_new_tokens=5)[1]["results"]:
        (hypothesis,) = result["hypotheses"]
        assert hypothesis["token_ids"][-2:] == [4, ENDS[0]]


def test_phrases_that_need_two_ends_are_refused(ask):
    """One end meets two phrases if it holds both, and the first of a list may be met elsewhere."""
    ids = [[4, ENDS[0]], [7, ENDS[0]], [9, 4, ENDS[0]], [7]]
    answer = ask.client.post("/v1/detokenize", json={"model": "ends", "token_ids": ids})
    four, seven, nine_four, before = (each["text"] for each in answer.json()["results"])
    both = f"asks for {four!r} and {seven!r}, which both can only end a target: omit one of them"
    for asked, detail in (
        ({"required": [four, before, seven]}, f"/required {both}"),
        ({"glossary": {"two": seven}, "required": [four]}, f"/glossary {both}"),
    ):
        status, problem = ask("ends", **asked)
        assert (status, problem["detail"]) == (422, detail)
    for required in ([four, [seven, before]], [four, nine_four], [four, four]):
        assert ask("ends", required=required, max_new_tokens=5)[0] == 200
    assert ask("ends", glossary={"two": seven, "red": four}, max_new_tokens=5)[0] == 200


def test_suppressed_tokens_of_the_model_and_of_the_request_add_up(ask):
    found, expected = both(
        ask,
        silent={"suppress_tokens": [7]},
        explicit={**OPTIONS, "suppress_tokens": [*SUPPRESSED, 7]},
    )
    assert found == expected
    status, problem = ask("chosen", suppress_tokens=[i for i in range(13) if i not in SUPPRESSED])
    assert (status, problem["errors"][0]["pointer"]) == (422, "/suppress_tokens")
    assert "leaves no id" in problem["detail"]


def test_fewer_tokens_than_the_model_wants_at_least(ask):
    status, answer = ask("chosen", max_new_tokens=2)
    assert status == 200
    for result in answer["results"]:
        (hypothesis,) = result["hypotheses"]
        assert (len(hypothesis["tokens"]), hypothesis["finish_reason"]) == (2, "length")


def test_errors_say_whose_beam_size_it_is(ask):
    detail = (
        "/num_hypotheses is 4 but beam_size is 3{}: lower num_hypotheses to at most 3, raise"
        " beam_size, or sample with temperature above 0"
    )
    assert ask("chosen", num_hypotheses=4)[1]["detail"] == detail.format(", the model's own")
    assert ask("chosen", num_hypotheses=4, beam_size=3)[1]["detail"] == detail.format("")


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"min_new_tokens": 13}, "lower min_new_tokens or raise max_new_tokens"),
        ({"min_new_tokens": 41, "max_new_tokens": 40}, "lower min_new_tokens"),
    ],
)
def test_more_tokens_are_advised_only_where_there_can_be_more(ask, options, advice):
    status, problem = ask("chosen", **options)
    assert status == 422
    assert problem["detail"].endswith(f": {advice}")


@pytest.mark.parametrize(("beam_size", "event"), [(None, "beam"), (1, "token"), (2, "beam")])
def test_a_stream_has_the_events_of_the_effective_beam_size(ask, beam_size, event):
    status, events = ask("chosen", stream=True, beam_size=beam_size)
    assert status == 200
    assert {name for name, _ in events} == {event, "done"}
    whole = ask("chosen", beam_size=beam_size)[1]["results"]
    for one, other in zip(events[-1][1]["results"], whole, strict=True):
        for hypothesis, same in zip(one["hypotheses"], other["hypotheses"], strict=True):
            assert hypothesis["token_ids"] == same["token_ids"]
            np.testing.assert_allclose(hypothesis["log_probs"], same["log_probs"], atol=1e-5)


def test_models_show_their_options_and_origin(ask):
    shown = ask.client.get("/v1/models/chosen").json()
    own = {"max_new_tokens": 12, "suppress_tokens": SUPPRESSED, "renormalize": False}
    own |= {"encoder_no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1.0}
    assert shown["decoding"] == OPTIONS | own
    assert (shown["max_new_tokens"], shown["origin"]) == (12, ORIGIN)
    assert ask.client.get("/v1/models/tiny").json()["origin"] == {}
    listed = {each["name"]: each for each in ask.client.get("/v1/models").json()["models"]}
    assert listed["chosen"]["origin"] == {"checkpoint": "none"}


def test_the_log_probs_of_a_model_that_renormalizes_sum_to_1(tiny, tmp_path):
    bundle = shutil.copytree(tiny, tmp_path / "bundle")
    manifest = json.loads((bundle / "bundle.json").read_text())
    edit_manifest(bundle, decoding=manifest["decoding"] | {"renormalize": True})
    others = sorted({*range(manifest["config"]["target_vocab_size"])} - {7})
    with opened(bundle) as client:
        body = {"source": SOURCES, "max_new_tokens": 3, "suppress_tokens": others}
        results = client.post("/v1/decode", json=body).json()["results"]
    for result in results:
        (hypothesis,) = result["hypotheses"]
        assert hypothesis["token_ids"] == [7, 7, 7]
        assert hypothesis["log_probs"] == [0, 0, 0]
