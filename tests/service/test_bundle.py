import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest

from service.bundle.alignment import AlignedHeads, check_heads
from service.bundle.manifest import Manifest, check_numbers, load_bundle
from service.errors import StartupError
from tests.conftest import ALIGNMENT, CANDIDATE, TINY, edit_manifest

PAGE = Path(__file__).parents[2] / "docs" / "bundle.md"


@pytest.fixture
def copy(tiny, tmp_path):
    return shutil.copytree(tiny, tmp_path / "bundle")


def test_a_bundle_is_what_its_manifest_says(copy):
    bundle = load_bundle(copy)
    assert bundle.manifest.name == "tiny"
    assert (bundle.manifest.config.d_qk, bundle.manifest.config.d_v) == (7, 6)


def test_no_bundle_is_not_a_traceback(tmp_path):
    with pytest.raises(StartupError, match=r"has no bundle\.json"):
        load_bundle(tmp_path)


def test_a_path_that_is_not_a_folder_is_called_so(copy):
    with pytest.raises(StartupError, match="nothing does not exist: give the folder of a bundle"):
        load_bundle(copy / "nothing")
    with pytest.raises(StartupError, match=r"bundle\.json is a file: give the folder of a bundle"):
        load_bundle(copy / "bundle.json")


def test_a_folder_of_bundles_names_those_that_it_holds(copy):
    shutil.copytree(copy, copy.with_name("another"))
    (copy.with_name("empty")).mkdir()
    found = f"holds some: give one or several of {copy.with_name('another')}, {copy}$"
    with pytest.raises(StartupError, match=found):
        load_bundle(copy.parent)


def test_weights_that_nobody_vouches_for_are_refused(copy):
    files = json.loads((copy / "bundle.json").read_text())["files"]
    del files["fp32/model.safetensors"]
    edit_manifest(copy, files=files)
    with pytest.raises(StartupError, match=r"no entry in .files.: fp32/model\.safetensors"):
        load_bundle(copy)


def test_the_default_model_is_small(g2p):
    assert sum(path.stat().st_size for path in g2p.rglob("*") if path.is_file()) <= 12e6


def test_a_changed_byte_is_found(copy):
    weights = copy / "fp32" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(StartupError, match="SHA-256 differs"):
        load_bundle(copy)


def test_a_missing_or_cut_file_is_found(copy):
    step = copy / "fp32" / "step.onnx"
    step.write_bytes(step.read_bytes()[:100])
    with pytest.raises(StartupError, match=r"step\.onnx has 100 bytes, but bundle\.json says"):
        load_bundle(copy)
    step.unlink()
    with pytest.raises(StartupError, match=r"step\.onnx is missing"):
        load_bundle(copy)


def test_a_model_card_of_any_bytes_is_a_text_of_bounded_size(copy):
    manifest = json.loads((copy / "bundle.json").read_text())
    assert load_bundle(copy).card == ""
    for content in (b"a \xff", b"a" * (1 << 20), b"a" * ((1 << 20) + 1)):
        (copy / "MODEL_CARD.md").write_bytes(content)
        entry = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        edit_manifest(copy, files={**manifest["files"], "MODEL_CARD.md": entry})
        if len(content) <= 1 << 20:
            assert load_bundle(copy).card == content.decode(errors="replace")
    with pytest.raises(StartupError, match=r"CARD\.md has 1048577 bytes; the limit is 1048576"):
        load_bundle(copy)


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "link"])
def test_no_file_may_lie_outside_the_folder(copy, name):
    (copy.parent / "outside").write_text("secret")
    (copy / "link").symlink_to(copy.parent / "outside")
    edit_manifest(copy, files={name: {"size": 6, "sha256": "0" * 64}})
    with pytest.raises(StartupError, match="lies outside the bundle"):
        load_bundle(copy)


DECODING = json.loads((TINY / "bundle.json").read_text())["decoding"]


def translates(**codes):
    """A manifest of a model that is told the target language as the first id of the target."""
    return {
        "decoder_start": ["target_language"],
        "languages": {"source": {}, "target": {"fra": [4], **codes}},
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"surprise": 1}, "surprise"),
        ({"eos_id": 99}, "id 99 is outside the target vocabulary"),
        ({"source_suffix": [50]}, "id 50 is outside the source vocabulary"),
        ({"decoder_start": []}, "decoder_start"),
        ({"decoder_start": ["source_language"]}, "decoder_start.0.slot must be 'target_language'"),
        ({"source_prefix": [-1]}, "source_prefix.0.id must be at least 0"),
        ({"source_prefix": ["source_language"]}, "but languages has no code of the source"),
        ({"decoder_start": [1, "target_language"]}, "but languages has no code of the target"),
        (
            {**translates(deu=[10]), "source_prefix": ["target_language"], "decoder_start": [2]},
            "id 10 is outside the source vocabulary of 10",
        ),
        (translates(deu=[13]), "id 13 is outside the target vocabulary of 13"),
        (
            translates(fra=[]),
            "has the slot target_language, but languages.target.fra has no ids: add",
        ),
        (
            {"languages": {**translates()["languages"], "default_target": "nld"}},
            "languages must have its default_target among the codes of the target",
        ),
        ({"examples": ["red"]}, "examples.0 must be a JSON object"),
        ({"examples": [{"source": ""}]}, "examples.0.source must have 1 or more characters"),
        ({"examples": [{"source": "red", "text": "red"}]}, "examples.0.text"),
        ({"examples": [{"source": "red"}] * 11}, "examples must have 10 or fewer items"),
        (
            {"examples": [{"source": "red", "target_language": "fra"}]},
            "examples.0 has the target_language 'fra', which languages lacks",
        ),
        (
            {**translates(deu=[5]), "examples": [{"source": "red"}]},
            "examples.0 has no target_language, but this model has 2",
        ),
        ({"decoding": {**DECODING, "max_new_tokens": 41}}, "exceed max_target_length"),
        (
            translates(deu=[5, 6, 7]),
            "max_new_tokens 40 and 3 start ids exceed max_target_length 40: .* at most 38",
        ),
        ({"decoding": {**DECODING, "min_new_tokens": 41}}, "min_new_tokens 41 exceeds max_new_tok"),
        ({"decoding": {**DECODING, "suppress_tokens": [13]}}, "id 13 is outside the target"),
        ({"decoding": {**DECODING, "beam_size": 65}}, "decoding.beam_size must be at most 64"),
        ({"decoding": {"max_new_tokens": 40}}, "decoding.beam_size is required"),
        ({"precisions": {"fp32": {"step": "fp32/step.onnx"}}}, "fp32 lacks the graphs encoder, "),
        (
            {"tokenizers": {"source": "a.json", "target": "b.json", "compose": False}},
            'no entry in "files"',
        ),
        ({"alignment": {}}, "alignment.layers is required"),
        ({"alignment": {**ALIGNMENT, "layers": []}}, "alignment.layers must have 1 or more items"),
        ({"alignment": {**ALIGNMENT, "layers": [0, 2]}}, "alignment.layers names 2, .* has 0 to 1"),
        ({"alignment": {**ALIGNMENT, "heads": [5]}}, "alignment.heads names 5, .* has 0 to 4"),
        ({"alignment": {**ALIGNMENT, "heads": [1, 1]}}, "which names one twice: name each once"),
        ({"alignment": {**ALIGNMENT, "shift": 2}}, "alignment.shift must be 0 or 1"),
        ({"alignment": {**ALIGNMENT, "agreement": 1.1}}, "alignment.agreement must be at most 1"),
        (
            {"alignment": {**ALIGNMENT, "second": {**CANDIDATE, "layers": [9]}}},
            "alignment.second.layers names 9",
        ),
        ({"limits": {"max_source_length": 21, "max_target_length": 40}}, "the network has 20 pos"),
    ],
)
def test_a_contradictory_manifest_is_refused(copy, changes, said):
    edit_manifest(copy, **changes)
    with pytest.raises(StartupError, match=said):
        load_bundle(copy)


OLDER = "export it again with `heed export"


@pytest.mark.parametrize(
    ("version", "way_out"), [(1, OLDER), (2, OLDER), (4, "install a later version of Heed")]
)
def test_another_format_is_refused_with_the_way_out(copy, version, way_out):
    """Whatever else the manifest lacks, as a bundle of format 1 does."""
    (copy / "bundle.json").write_text(json.dumps({"format_version": version, "name": "old"}))
    said = f"has format {version}; this Heed reads format 3: {way_out}"
    with pytest.raises(StartupError, match=said):
        load_bundle(copy)


def test_the_examples_of_the_page_are_an_alignment_and_a_manifest():
    text = PAGE.read_text(encoding="utf-8")
    (alignment, example) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    check_heads(AlignedHeads.model_validate_json(alignment), 4, 8, PAGE)
    manifest = Manifest.model_validate_json(example)
    check_numbers(manifest, PAGE)
    code = manifest.languages.target["fra_Latn"]
    assert manifest.start_ids(code) == [2, *code]
    assert manifest.target_positions == manifest.limits.max_target_length - 1
