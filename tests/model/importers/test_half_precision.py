"""Checkpoints in half precision give Hugging Face's numbers, and are stored without loss."""

import pytest
import torch
import transformers
from safetensors import safe_open

from tests.conftest import opened
from tests.model.importers.kinds import LANGUAGES, WRITERS, banned
from tests.model.importers.served import assert_same_answers, convert, start_of
from tests.tracing import without_gates

QUICK = {("byt5", "bfloat16")}
CASES = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.long)
    for kind in WRITERS
    for case in ((kind, "bfloat16"), (kind, "float16"))
]
PAIRS = [([20, 7, 9, 300, 41], [17, 5, 90]), ([8] * 11, [33] * 9), ([1200, 6], [400, 12, 13, 9])]
# A width of heads whose square root no type of 16 bits holds
WIDE = {kind: {"d_kv": 24} for kind in ("t5", "flan", "byt5")}


def write(folder, kind, dtype):
    """Write a checkpoint whose weights have 16 bits, and return it as Hugging Face loads it."""
    folder.mkdir()
    WRITERS[kind](folder, **WIDE.get(kind, {})).to(getattr(torch, dtype)).save_pretrained(folder)
    load = transformers.AutoModelForSeq2SeqLM.from_pretrained
    return load(folder, dtype=torch.float32).eval()


def types_of(bundle):
    with safe_open(bundle / "fp32" / "model.safetensors", "np") as file:
        return {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118


@pytest.mark.parametrize(("kind", "dtype"), CASES)
def test_answers_are_those_of_hugging_face(tmp_path, kind, dtype):
    theirs, languages = write(tmp_path / "checkpoint", kind, dtype), LANGUAGES.get(kind, {})
    pairs = [[[i % theirs.config.vocab_size for i in ids] for ids in pair] for pair in PAIRS]
    with without_gates():
        bundle = convert(tmp_path / "checkpoint")
    with opened(bundle, precision="fp32") as client:
        banned_ids = banned(kind, theirs)
        assert_same_answers(client, theirs, pairs, bundle, languages, banned_ids)
    short = {"bfloat16": "BF16", "float16": "F16"}[dtype]
    found = types_of(bundle)
    assert found["encoder.layers.0.feed_forward.up.weight"] == short  # as large as the checkpoint's
    if kind in WIDE:
        assert found["encoder.layers.0.self_attention.query.weight"] == "F32"


@pytest.mark.parametrize(
    "kind",
    [
        "marian",
        *(pytest.param(each, marks=pytest.mark.long) for each in ("bart", "marian2", "pegasus")),
    ],
)
def test_weights_are_rounded_on_request_and_compared_so(tmp_path, kind):
    """`--weights` rounds the checkpoint's own weights, in both networks of the proof. Positions of
    Marian are computed: no file holds them."""
    (tmp_path / "checkpoint").mkdir()
    theirs = WRITERS[kind](tmp_path / "checkpoint")
    bundle = convert(tmp_path / "checkpoint", "fp32", "--weights", "bf16")
    assert "BF16" in types_of(bundle).values()
    with torch.no_grad(), safe_open(tmp_path / "checkpoint" / "model.safetensors", "pt") as file:
        for name, tensor in theirs.state_dict().items():
            if name in file.keys():  # noqa: SIM118
                tensor.copy_(tensor.to(torch.bfloat16))
    with opened(bundle, precision="fp32") as client:
        assert_same_answers(client, theirs, PAIRS, bundle, {}, banned(kind, theirs))
    assert start_of(bundle, {})
