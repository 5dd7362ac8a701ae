"""What is no checkpoint is refused in one sentence that says what to give instead."""

import pytest

from tests.model.importers.served import refusal

ADVICE = {  # the files of a folder, and what is said
    ("config.json", "tf_model.h5"): "weights of TensorFlow only (tf_model.h5): download model.safe",
    ("config.json", "flax_model.msgpack"): "or load it in transformers 4 with from_flax=True",
    ("model-q4.gguf",): "weights in GGUF only: give the checkpoint that they were made from",
    ("config.json", "onnx/encoder_model.onnx"): "weights in ONNX only",
    ("config.json", "model.bin", "shared_vocabulary.json"): "holds a model of CTranslate2: give",
    ("bundle.json", "fp32/step.onnx"): "is a bundle already: serve it with HEED_BUNDLES={folder},",
    ("config.json", "adapter_config.json"): "holds an adapter (adapter_config.json): merge it",
    ("snapshots/1a/config.json",): "a hub cache: give {folder}/snapshots/1a",
    (
        "snapshots/1a/config.json",
        "snapshots/2b/config.json",
    ): "give {folder}/snapshots/1a or {folder}/snapshots/2b",
    (
        "refs/main=2b",
        "snapshots/1a/config.json",
        "snapshots/2b/config.json",
    ): "the root of a hub cache: give {folder}/snapshots/2b",
    ("snapshots/",): "it has no snapshot, so download the model again",
    (): "it has no config.json; give a folder that save_pretrained wrote",
}


@pytest.mark.parametrize(("files", "said"), ADVICE.items())
def test_a_folder_of_another_kind_is_named(tmp_path, files, said):
    folder = tmp_path / "given"
    folder.mkdir()
    for name in files:
        path, _, content = name.partition("=")
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if path.endswith("/"):
            (folder / path).mkdir()
        else:
            (folder / path).write_text(content)
    sentence = refusal(folder, tmp_path / "bundle")
    assert said.format(folder=folder) in sentence
    assert "1a" not in sentence or "snapshots/1a" in said
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nobody/opus-mt", "run hf download nobody/opus-mt --local-dir opus-mt, and give opus-mt"),
        ("/nowhere/opus-mt-en-fr", "/nowhere/opus-mt-en-fr does not exist: give the folder"),
        (__file__, "is a file: give the folder of a checkpoint"),
    ],
)
def test_what_is_no_folder_is_named(tmp_path, name, said):
    assert said in refusal(name, tmp_path / "bundle")
