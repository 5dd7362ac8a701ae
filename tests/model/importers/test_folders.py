"""A folder that is not a checkpoint is refused in one sentence that says what to give instead."""

import pytest

from tests.model.importers.served import refusal

ADVICE = {  # the files of a folder, and what is said
    ("config.json", "tf_model.h5"): "weights of TensorFlow only (tf_model.h5): download model.safe",
    ("config.json", "flax_model.msgpack"): "or load it in transformers 4 with from_flax=True",
    ("model-q4.gguf",): "weights in GGUF only (model-q4.gguf): give the checkpoint that they were",
    ("config.json", "onnx/encoder_model.onnx"): "weights in ONNX only (onnx/encoder_model.onnx)",
    ("openvino_encoder_model.xml",): "weights in OpenVINO's format only",
    (
        "latest",
        "global_step9/mp_rank_00_model_states.pt",
    ): "holds shards of DeepSpeed (glob",
    ("config.json", "zero_pp_rank_0_mp_rank_00_optim_states.pt"): "run the zero_to_fp32.py that li",
    ("pytorch_model_fsdp_0/__0_0.distcp",): "torch.distributed.checkpoint.format_utils dcp_to",
    (
        "adapter_model.safetensors",
        "README.md",
    ): "holds an adapter (adapter_model.safetensors)",
    (
        "dict.en.txt",
        "dict.de.txt",
        "checkpoint_best.pt",
    ): "holds checkpoint_best.pt, a checkpo",
    (
        "dict.txt",
        "model.pt",
    ): "holds model.pt, a checkpoint of fairseq: convert it to Hugging F",
    ("run_step_9000.pt",): "holds run_step_9000.pt, a checkpoint of OpenNMT-py: join its entries",
    (
        "checkpoint",
        "ckpt-5000.index",
    ): "holds ckpt-5000.index, a checkpoint of TensorFlow, such",
    (
        "avg/ckpt-9.index",
        "data.yml",
    ): "such as OpenNMT-tf writes: save its tensors as model.safe",
    ("saved_model/saved_model.pb",): "has a SavedModel of TensorFlow only (saved_model/saved_model",
    ("model.npz", "source.spm"): "model.npz is damaged or cut short",
    ("model.enpt.intgemm.alphas.bin",): "ends after 0 bytes, in the middle of what it says",
    ("params.best", "vocab.src.0.json"): "holds params.best, a checkpoint of Sockeye",
    ("config.yaml", "best.ckpt"): 'Lightning or JoeyNMT: write weights = "best.ckpt" and the entry',
    ("epoch1-step20.ckpt",): 'write weights = "epoch1-step20.ckpt" and the entry with its tensors',
    (
        "checkpoint-500/config.json",
        "trainer.log",
    ): "give one of them, such as {folder}/checkpoint",
    (
        "config.json",
        "optimizer.pt",
    ): "holds the state of an optimizer (optimizer.pt) and no weig",
    ("nmt.nemo",): "holds nmt.nemo, an archive of NeMo: unpack it with tar",
    ("model.keras",): "has weights of Keras only (model.keras)",
    ("heed.toml", "model.gguf"): "weights in GGUF only",
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
        ("opus-mt", "give its owner as well, as in Helsinki-NLP/opus-mt"),
        ("/nowhere/opus-mt-en-fr", "/nowhere/opus-mt-en-fr does not exist: give the folder"),
        (__file__, "is a file: give the folder of a checkpoint"),
    ],
)
def test_what_is_not_a_folder_is_named(tmp_path, name, said):
    assert said in refusal(name, tmp_path / "bundle")
