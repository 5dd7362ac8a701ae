import json
import shutil

import pytest

from service.bundle import load_bundle
from service.errors import StartupError


@pytest.fixture
def copy(tiny, tmp_path):
    return shutil.copytree(tiny, tmp_path / "bundle")


def edit(bundle, **changes):
    manifest = json.loads((bundle / "bundle.json").read_text())
    (bundle / "bundle.json").write_text(json.dumps({**manifest, **changes}))


def test_a_bundle_is_what_its_manifest_says(copy):
    bundle = load_bundle(copy)
    assert bundle.manifest.name == "tiny"
    assert (bundle.manifest.config.d_qk, bundle.manifest.config.d_v) == (7, 6)


def test_no_bundle_is_not_a_traceback(tmp_path):
    with pytest.raises(StartupError, match=r"has no bundle\.json"):
        load_bundle(tmp_path)


def test_weights_that_nobody_vouches_for_are_refused(copy):
    files = json.loads((copy / "bundle.json").read_text())["files"]
    del files["fp32/model.safetensors"]
    edit(copy, files=files)
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


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "link"])
def test_no_file_may_lie_outside_the_folder(copy, name):
    (copy.parent / "outside").write_text("secret")
    (copy / "link").symlink_to(copy.parent / "outside")
    edit(copy, files={name: {"size": 6, "sha256": "0" * 64}})
    with pytest.raises(StartupError, match="lies outside the bundle"):
        load_bundle(copy)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format_version": 2}, "format_version"),
        ({"surprise": 1}, "surprise"),
        ({"eos_id": 99}, "id 99 is outside the target vocabulary"),
        ({"source_suffix_ids": [50]}, "id 50 is outside the source vocabulary"),
        ({"decoder_start_ids": []}, "decoder_start_ids"),
        ({"decoding": {"max_new_tokens": 41}}, "exceed max_target_length"),
        (
            {"precisions": {"fp32": {"step": "fp32/step.onnx"}}},
            "fp32 lacks the graphs encoder, which",
        ),
        ({"tokenizers": {"source": "a.json", "target": "b.json"}}, 'no entry in "files"'),
        (
            {"limits": {"max_source_length": 21, "max_target_length": 40}},
            "is 21 and the network has 20 positions",
        ),
    ],
)
def test_a_contradictory_manifest_is_refused(copy, changes, said):
    edit(copy, **changes)
    with pytest.raises(StartupError, match=said):
        load_bundle(copy)
