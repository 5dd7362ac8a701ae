"""The limits of export are those of the service: what one accepts, the other opens."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.checkpoint import TrainedModel
from model.export.bundle import write_bundle
from model.export.files.limits import OF_SOURCE, find_faults
from model.export.files.manifest import LARGEST, Card, check_files, check_limits, describe
from model.export.files.weights import WeightType
from model.network.config import InputError, TransformerConfig
from model.usage import GREEDY, Usage
from service.bundle import files as bundle_files
from service.bundle.manifest import Manifest, check_numbers
from service.errors import StartupError
from service.runtime import reference

SIZES = {
    "source_vocab_size": 20,
    "target_vocab_size": 24,
    "d_model": 8,
    "num_heads": 2,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "max_source_length": 6,
    "max_target_length": 9,
}
USAGE = Usage(decoder_start=[1], max_new_tokens=5, unknown_id=3)
GRAPHS = {"fp32": {"encoder": "fp32/encoder.onnx", "step": "fp32/step.onnx"}}


def trained(config, usage):
    """Return what `describe` reads of a model."""
    return TrainedModel(SimpleNamespace(config=config), None, None, usage)


def is_opened(config, usage):
    manifest = describe(trained(config, usage), Card(name="a"), Path("nowhere"))
    content = json.dumps(manifest | {"precisions": GRAPHS})
    try:
        check_numbers(Manifest.model_validate_json(content), Path("bundle.json"))
    except (StartupError, ValueError):  # of which pydantic's is one
        return False
    return True


def changed(changes):
    """Return a configuration and a usage with these changes, of whichever has the field."""
    sizes = {name: value for name, value in changes.items() if name in SIZES}
    options = {name: value for name, value in changes.items() if name in {*GREEDY, *OF_SOURCE}}
    rest = {name: changes[name] for name in changes.keys() - sizes.keys() - options.keys()}
    config = TransformerConfig(**SIZES | sizes)
    return config, replace(USAGE, decoding=GREEDY | options, **rest)


ONE = {"source_languages": {"a": [4]}, "target_languages": {"a": [5], "b": [6, 7]}}
BOUNDS = [  # of each limit: changes that a bundle may hold, and changes that it may not
    ({"beam_size": 64}, {"beam_size": 65}),
    ({"beam_size": 1}, {"beam_size": 0}),
    ({"length_penalty": -10}, {"length_penalty": -10.5}),
    ({"length_penalty": 10.0}, {"length_penalty": float("nan")}),
    ({"length_penalty": 0}, {"length_penalty": float("inf")}),
    ({"no_repeat_ngram_size": 64}, {"no_repeat_ngram_size": 65}),
    ({"no_repeat_ngram_size": 0}, {"no_repeat_ngram_size": -1}),
    ({"repetition_penalty": 0.01}, {"repetition_penalty": 0.0}),
    ({"repetition_penalty": 100}, {"repetition_penalty": 100.5}),
    ({"max_new_tokens": 9}, {"max_new_tokens": 10}),
    (
        {"max_new_tokens": 8, "decoder_start": [1, 2]},
        {"decoder_start": [1, 2], "max_new_tokens": 9},
    ),
    ({"max_new_tokens": 1}, {"max_new_tokens": 0}),
    ({"min_new_tokens": 5}, {"min_new_tokens": 6}),
    ({"min_new_tokens": 0}, {"min_new_tokens": -1}),
    ({"suppress_tokens": [23]}, {"suppress_tokens": [24]}),
    ({"suppress_tokens": [0] * (1 << 16)}, {"suppress_tokens": [0] * ((1 << 16) + 1)}),
    ({"suppress_tokens": []}, {"suppress_tokens": [-1]}),
    ({"suppress_tokens": [[23, 0]]}, {"suppress_tokens": [[23, 24]]}),
    ({"suppress_tokens": [5, [0] * 64]}, {"suppress_tokens": [5, [0] * 65]}),
    ({"suppress_tokens": [[5]]}, {"suppress_tokens": [[]]}),
    ({"other_eos_ids": [23]}, {"other_eos_ids": [24]}),
    ({"other_eos_ids": [5] * 16}, {"other_eos_ids": [5] * 17}),
    (
        {"encoder_no_repeat_ngram_size": 64, "source_vocab_size": 24},
        {"encoder_no_repeat_ngram_size": 65, "source_vocab_size": 24},
    ),
    ({"encoder_no_repeat_ngram_size": 0}, {"encoder_no_repeat_ngram_size": 1}),
    (
        {"encoder_repetition_penalty": 0.01, "source_vocab_size": 24},
        {"encoder_repetition_penalty": 0, "source_vocab_size": 24},
    ),
    ({"encoder_repetition_penalty": 1}, {"encoder_repetition_penalty": 1.5}),
    ({"unknown_id": 19}, {"unknown_id": 20}),
    ({"unknown_id": None}, {"unknown_id": -1}),
    ({"decoder_start": [23]}, {"decoder_start": [24]}),
    ({"decoder_start": [1] * 9, "max_new_tokens": 1}, {"decoder_start": []}),
    ({"decoder_start": [0]}, {"decoder_start": [1] * 10, "max_new_tokens": 1}),
    ({"source_prefix": [19]}, {"source_prefix": [20]}),
    ({"source_suffix": [0]}, {"source_suffix": [-1]}),
    ({"source_prefix": [1] * 3, "source_suffix": [1] * 2}, {"source_prefix": [1] * 6}),
    ({"decoder_start": [1, "target_language"], **ONE}, {"decoder_start": [1, "target_language"]}),
    ({"source_prefix": ["source_language"], **ONE}, {"decoder_start": ["source_language"], **ONE}),
    (
        {"decoder_start": [1, "target_language"], **ONE, "max_new_tokens": 7},
        {"decoder_start": [1, "target_language"], **ONE, "max_new_tokens": 8},
    ),
    ({"target_languages": {"a": [99]}}, {"target_languages": {"a": [-1]}}),
    (
        {"target_languages": {"a": [], "b": [1]}},
        {"decoder_start": [1, "target_language"], "target_languages": {"a": [], "b": [1]}},
    ),
    (
        {"source_languages": {"a": []}},
        {"source_prefix": ["source_language"], "source_languages": {"a": []}},
    ),
    (
        {"source_suffix": ["target_language"], "target_languages": {"a": [19]}},
        {"source_suffix": ["target_language"], "target_languages": {"a": [20]}},
    ),
    ({"num_encoder_layers": 1000}, {"num_encoder_layers": 1001}),
    ({"num_decoder_layers": 1000}, {"num_decoder_layers": 1001}),
    ({"max_source_length": (1 << 31) - 1}, {"max_source_length": 1 << 31}),
    ({"target_vocab_size": (1 << 31) - 1}, {"target_vocab_size": 1 << 31}),
]


@pytest.mark.parametrize(("accepted", "refused"), BOUNDS)
def test_both_sides_accept_and_refuse_the_same_at_a_limit(accepted, refused):
    config, usage = changed(accepted)
    check_limits(trained(config, usage))
    assert is_opened(config, usage)
    config, usage = changed(refused)
    key = next(find_faults(config, usage)).key
    with pytest.raises(InputError, match=f"{key} is .*; expected "):
        check_limits(trained(config, usage))
    assert not is_opened(config, usage)


def test_a_model_that_no_bundle_may_hold_is_refused_before_anything_is_written(tmp_path):
    model = trained(*changed({"beam_size": 100}))
    with pytest.raises(InputError, match="beam_size is 100; expected 1 to 64: no bundle may"):
        write_bundle(model, Card(name="a"), WeightType.fp32, tmp_path / "bundle")
    assert not any(tmp_path.iterdir())


IDS = st.sampled_from([-1, 0, 1, 2, 18, 19, 20, 23, 24, 30])
LANGUAGES = st.dictionaries(st.sampled_from("ab"), st.lists(IDS, max_size=2), max_size=2)
ITEMS = st.lists(IDS | st.sampled_from(["source_language", "target_language"]), max_size=4)
NUMBERS = st.sampled_from([-11, -10, 0, 0.01, 1, 1.5, 10, 64, 65, 100, 101, float("nan"), 1e300])
COUNTS = st.integers(-1, 12) | st.sampled_from([63, 64, 65, 100])
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "beam_size": COUNTS,
        "no_repeat_ngram_size": COUNTS,
        "min_new_tokens": COUNTS,
        "max_new_tokens": COUNTS,
        "length_penalty": NUMBERS,
        "repetition_penalty": NUMBERS,
        "suppress_tokens": st.lists(IDS | st.lists(IDS, max_size=2), max_size=3),
        "other_eos_ids": st.lists(IDS, max_size=2),
        "encoder_repetition_penalty": NUMBERS,
        "source_prefix": ITEMS,
        "source_suffix": ITEMS,
        "decoder_start": ITEMS,
        "source_languages": LANGUAGES,
        "target_languages": LANGUAGES,
        "unknown_id": IDS | st.none(),
        "max_source_length": st.integers(1, 6),
        "max_target_length": st.integers(1, 6),
    },
)


@settings(derandomize=True, max_examples=500, deadline=None)
@given(CHANGES)
def test_what_export_accepts_the_service_opens_and_nothing_else(changes):
    config, usage = changed(changes)
    assert bool([*find_faults(config, usage)]) is not is_opened(config, usage)


def test_files_have_the_limits_of_the_service(tmp_path):
    assert LARGEST == {
        "bundle.json": bundle_files.LARGEST_MANIFEST,
        "MODEL_CARD.md": bundle_files.LARGEST_CARD,
        "parity.npz": reference.LARGEST_REFERENCE,
        "shortlists.npz": reference.LARGEST_REFERENCE,
        "source.tokenizer.json": bundle_files.LARGEST_TOKENIZER,
        "target.tokenizer.json": bundle_files.LARGEST_TOKENIZER,
        "target_lists.npz": reference.LARGEST_REFERENCE,
    }
    card = tmp_path / "MODEL_CARD.md"
    card.write_bytes(b"a" * (1 << 20))
    check_files(tmp_path)
    card.write_bytes(b"a" * ((1 << 20) + 1))
    with pytest.raises(InputError, match=r"CARD.md of the bundle has 1048577 bytes; the limit is"):
        check_files(tmp_path)
