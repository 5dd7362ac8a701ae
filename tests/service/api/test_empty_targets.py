"""Targets for which the rules allow no token are answers like others."""

import numpy as np
import pytest

from tests.documentation import events_of

EOS, SIZE = 2, 73
NOTHING = {"suppress_tokens": [i for i in range(SIZE) if i != EOS], "min_new_tokens": 1}
DRAWN = {"suppress_tokens": [*range(EOS, SIZE)], "temperature": 1}
OFF = [{"kind": "cross", "layer": 0, "heads": [0]}]
NONE = {"banned": NOTHING, "drawn": DRAWN, "ablated": {**NOTHING, "ablate": OFF}}
KINDS = ["encoder", "decoder", "cross"]
ASKED = {
    "norms": {"attention": {"kinds": KINDS, "measure": "norm"}},
    "rows": {"attention": {"kinds": KINDS, "rows": [0, 3]}},
    "rollout": {
        "attention": {"kinds": KINDS[:2], "reduce_heads": "mean", "reduce_layers": "rollout"}
    },
    "alignment": {"attention": {"alignment": "argmax"}},
    "words": {"words": True, "source_share": True},
    "growing": {"source_final": False},
    "unknown": {"replace_unknown": True},
    "beams": {**NOTHING, "attention": {}, "temperature": 0, "beam_size": 3},
    "alternatives": {"top_log_probs": 3},
    "markup": {"source": "<b>heed</b>", "markup": "xml"},
    "split": {"split": "sentences"},
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("none", NONE.values(), ids=NONE)
def test_every_option_has_an_answer(client, asked, none):
    body = {"model": "g2p-en", "source": "heed", **none, **asked}
    answer = client.post("/v1/decode", json=body)
    assert answer.status_code == 200, answer.text
    for each in answer.json()["results"][0]["hypotheses"]:
        assert each["text"] == ("<b></b>" if "markup" in asked else "")
        assert each.get("token_ids", []) == []
        assert each.get("top_log_probs") == ([] if "top_log_probs" in asked else None)
    if not {*asked} & {"markup", "replace_unknown"}:  # which are not streamed
        events = events_of(client.post("/v1/decode", json={**body, "stream": True}).text)
        assert events[-1][0] == "done"


@pytest.mark.parametrize("path", ["/v1/decode", "/v1/attention"])
@pytest.mark.parametrize("measure", ["weight", "norm"])
@pytest.mark.parametrize(
    ("prefix", "before"), [("", ["<bos>"]), ("HH IY1", ["<bos>", "HH", "IY1"])]
)
def test_the_columns_are_what_the_decoder_has_read(post, path, measure, prefix, before):
    selection = {"kinds": KINDS, "measure": measure}
    status, document = post(
        path, source="heed", attention=selection, target_prefix=prefix or None, **NOTHING
    )
    assert status == 200, document
    (result,) = document["results"]
    found = result.get("attention") or result["hypotheses"][0]["attention"]
    blocks = {each["kind"]: each for each in found}
    assert [each["text"] for each in blocks["decoder"]["columns"]] == [
        "<bos>",
        *prefix.split(),
    ]
    for kind, block in blocks.items():
        assert block["shape"][2:] == [len(block["rows"]), len(block["columns"])]
        assert np.array(block["data"]).reshape(block["shape"]).shape[2] == (
            4 if kind == "encoder" else 0
        )
