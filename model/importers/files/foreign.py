"""Recognise the files of other programs, and say what to do with them."""

from collections.abc import Collection
from pathlib import Path

DESCRIBE = "describe it in heed.toml (docs/checkpoints.md)"
SAVE = f"save its tensors as model.safetensors, and {DESCRIBE}"
HUGGING_FACE = "model.safetensors or pytorch_model.bin"
MADE_FROM = f"give the checkpoint that they were made from, with {HUGGING_FACE}"
DEEPSPEED = (
    "holds shards of DeepSpeed ({found}): run the zero_to_fp32.py that lies next to them, and give"
    " the folder with the weights that it writes"
)
FAIRSEQ = (
    "a checkpoint of fairseq: convert it to Hugging Face's files with the script that transformers"
    " has for its family, or save its entry model as a state dict, and " + DESCRIBE
)
FILES = (  # patterns that all have a match, and what the folder then holds
    (
        ["tf_model.h5"],
        f"has weights of TensorFlow only ({{found}}): download {HUGGING_FACE}, or load it in"
        " transformers 4 with from_tf=True and save it",
    ),
    (
        ["flax_model.msgpack"],
        f"has weights of Flax only ({{found}}): download {HUGGING_FACE}, or load it in"
        " transformers 4 with from_flax=True and save it",
    ),
    *(
        (
            ["model.bin", vocabulary],
            "holds a model of CTranslate2: give the checkpoint that it was converted from",
        )
        for vocabulary in ("shared_vocabulary.*", "source_vocabulary.*")
    ),
    (["**/*_model_states.pt"], DEEPSPEED),
    (["**/*_optim_states.pt"], DEEPSPEED),
    (
        ["**/*.distcp"],
        "holds shards of torch.distributed ({found}): merge them with python -m"
        " torch.distributed.checkpoint.format_utils dcp_to_torch",
    ),
    (
        ["adapter_model.*"],
        "holds an adapter ({found}): merge it into its model, and give the folder of the merged"
        " model",
    ),
    (["dict*.txt", "*.pt"], f"holds {{found}}, {FAIRSEQ}"),
    (
        ["*_step_*.pt"],
        "holds {found}, a checkpoint of OpenNMT-py: join its entries model and generator to one"
        f" state dict, save that with torch.save, and {DESCRIBE}",
    ),
    (
        ["**/*ckpt-*.index"],
        f"holds {{found}}, a checkpoint of TensorFlow, such as OpenNMT-tf writes: {SAVE}",
    ),
    (["**/saved_model.pb"], f"has a SavedModel of TensorFlow only ({{found}}): {SAVE}"),
    (["params.best"], f"holds {{found}}, a checkpoint of Sockeye: {SAVE}"),
    (["*.nemo"], f"holds {{found}}, an archive of NeMo: unpack it with tar, {SAVE}"),
    (["*.keras"], f"has weights of Keras only ({{found}}): {SAVE}"),
    (["*.h5"], f"has weights of Keras only ({{found}}): {SAVE}"),
    (["*.gguf"], f"has weights in GGUF only ({{found}}): {MADE_FROM}"),
    (["**/*.onnx"], f"has weights in ONNX only ({{found}}): {MADE_FROM}"),
    (["openvino*.xml"], f"has weights in OpenVINO's format only ({{found}}): {MADE_FROM}"),
    (["**/*.tflite"], f"has weights in TFLite's format only ({{found}}): {MADE_FROM}"),
    (
        ["*.ckpt"],
        'holds {found}, a checkpoint of Lightning or JoeyNMT: write weights = "{found}" and the'
        f' entry with its tensors, such as state = "state_dict", in heed.toml, and {DESCRIBE}',
    ),
    (["checkpoint-*/*"], "holds checkpoints of a training: give one of them, such as {parent}"),
    (
        ["optimizer.pt"],
        "holds the state of an optimizer ({found}) and no weights: copy the weights of the same"
        " training",
    ),
)
ENTRIES = (  # keys of a file that torch.save wrote, and what the file then is
    ({"optimizer_history", "extra_state"}, FAIRSEQ),
    ({"last_optimizer_state", "extra_state"}, FAIRSEQ),
    (
        {"generator", "vocab", "opt"},
        "a checkpoint of OpenNMT-py: join its entries model and generator to one state dict, save"
        f" that with torch.save, and {DESCRIBE}",
    ),
    (
        {"pytorch-lightning_version", "state_dict"},
        "a checkpoint of Lightning: open it where you trust it, and save its entry state_dict with"
        " torch.save",
    ),
    (
        {"model_state", "best_ckpt_score"},
        'a checkpoint of JoeyNMT: write state = "model_state" in heed.toml',
    ),
    ({"ds_version"}, "a shard of DeepSpeed: run zero_to_fp32.py, and give what it writes"),
)


def describe_files(folder: Path) -> str:
    """Say what a folder without known weights holds, as the rest of a sentence; "" if unknown."""
    for patterns, text in FILES:
        found = [path for pattern in patterns for path in sorted(folder.glob(pattern))[:1]]
        if len(found) == len(patterns):
            name = found[-1].relative_to(folder)
            return text.format(found=name, parent=folder / name.parent)
    return ""


def describe_entries(entries: Collection[str]) -> str:
    """Return which program wrote a file with these entries, and what to do; "" if unknown."""
    held = set(entries)
    return next((text for keys, text in ENTRIES if keys <= held), "")
