"""Damaged manifests, and files that are missing or altered: bundle.json says so."""

import os
import shutil
from functools import partial

from tests.service.mutations.edit import PARITY, SOURCE, TEXTS, WEIGHTS, cut, edit_json, put, write

FIELDS = {
    *("source_vocab_size", "target_vocab_size", "d_model", "d_ff", "num_heads", "d_qk", "d_v"),
    *("num_encoder_layers", "num_decoder_layers", "max_source_length", "max_target_length"),
}


def manifest(*path_and_value):
    return partial(edit_json, "bundle.json", put(*path_and_value))


def grow(*path):
    """A change that adds 1 to the number at a path."""

    def change(document):
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] += 1

    return partial(edit_json, "bundle.json", change)


def without(key):
    return partial(edit_json, "bundle.json", lambda document: document.pop(key))


def languages(prefix, **codes):
    def change(document):
        document |= {"languages": {"source": codes, "target": {}}, "source_prefix": prefix}

    return partial(edit_json, "bundle.json", change)


KEYS = (
    *("format_version", "name", "task", "licence", "attribution", "config", "limits", "decoding"),
    *("pad_id", "eos_id", "unknown_id", "source_prefix", "source_suffix", "decoder_start"),
    *("languages", "tokenizers", "precisions", "origin", "files"),
)
MANIFESTS = {
    **{f"bundle.json {name}": partial(write, "bundle.json", text) for name, text in TEXTS.items()},
    "bundle.json cut": partial(cut, "bundle.json", 0.7),
    **{f"no {key}": without(key) for key in KEYS},
    **{f"{key} is a list of lists": manifest(key, [[]]) for key in KEYS},
    **{f"{field} + 1": grow("config", field) for field in sorted(FIELDS)},
    **{f"{field} 10^9": manifest("config", field, 10**9) for field in sorted(FIELDS)},
    "d_model 10^30": manifest("config", "d_model", 10**30),
    "d_model 0": manifest("config", "d_model", 0),
    "d_model true": manifest("config", "d_model", "many"),
    "decoder ssru": manifest("config", "decoder", "ssru"),
    "decoder unknown": manifest("config", "decoder", "rnn"),
    "score additive": manifest("config", "score_function", "additive"),
    "score gaussian": manifest("config", "score_function", "gaussian"),
    "score unknown": manifest("config", "score_function", "none\nTraceback"),
    "name with lines": manifest("name", "a\nb"),
    "task with escapes": manifest("task", "\x1b[2J\u202e"),
    "empty example": manifest("examples", [{"source": ""}]),
    "long example": manifest("examples", [{"source": "a" * 1001}]),
    "example in no language": manifest("examples", [{"source": "a", "source_language": "fr"}]),
    "examples without end": manifest("examples", [{"source": "a"}] * 11),
    "prefix takes all": manifest("source_prefix", [4] * 20),
    "prefix leaves one": manifest("source_prefix", []),
    "suffix takes all": manifest("source_suffix", [4] * 10_000),
    "language takes all": languages(["source_language"], long=[4] * 20, short=[4]),
    "start takes all": manifest("decoder_start", [1] * 41),
    "id outside": manifest("pad_id", 13),
    "id 10^30": manifest("eos_id", 10**30),
    "suppressed outside": manifest("decoding", "suppress_tokens", [2**31]),
    "NaN penalty": manifest("decoding", "length_penalty", float("nan")),
    "unknown precision": partial(
        edit_json, "bundle.json", lambda d: d["precisions"].update(fp64=d["precisions"].pop("fp32"))
    ),
    **{
        f"graph at {name[:9]!r}": manifest("precisions", "fp32", "step", name)
        for name in ("/etc/passwd", "../x.onnx", "a\0b", "x" * 5000, "", ".", "fp32", "no/x.onnx")
    },
    **{
        f"tokenizer at {name!r}": manifest("tokenizers", "source", name)
        for name in ("/etc/passwd", "../tokenizer.json", "a\0b", "bundle.json", "no.json")
    },
    **{
        f"file {name[:9]!r}": manifest("files", name, {"size": 1, "sha256": "0" * 64})
        for name in ("/dev/zero", "..", "a\nb", "\u202e", "\ud800", "x" * 5000)
    },
    "negative size": manifest("files", PARITY, "size", -1),
    "swapped graphs": partial(
        edit_json,
        "bundle.json",
        lambda d: d["precisions"]["fp32"].update(
            encoder="fp32/step.onnx", step="fp32/encoder.onnx"
        ),
    ),
}


def remove(name, folder):
    (folder / name).unlink()


def link(name, target, folder):
    remove(name, folder)
    (folder / name).symlink_to(target)


def flip(name, folder):
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    write(name, bytes(content), folder)


def make_folder(name, folder):
    remove(name, folder)
    (folder / name).mkdir()


FILES = {
    **{f"{name} missing": partial(remove, name) for name in (WEIGHTS, PARITY, SOURCE, "NOTICE")},
    **{f"{name} flipped": partial(flip, name) for name in (WEIGHTS, PARITY, SOURCE, "NOTICE")},
    "link out": partial(link, PARITY, "/etc/passwd"),
    "link to a device": partial(link, PARITY, "/dev/zero"),
    "link to itself": partial(link, PARITY, "parity.npz"),
    "a folder for a file": partial(make_folder, PARITY),
    "a folder for bundle.json": partial(make_folder, "bundle.json"),
    "file next to the graphs": partial(write, "fp32/other.bin", b"0"),
    "folder next to the graphs": lambda folder: (folder / "fp32" / "more").mkdir(),
    "no folder of graphs": lambda folder: shutil.rmtree(folder / "fp32"),
    "pipe": lambda folder: (remove(PARITY, folder), os.mkfifo(folder / PARITY)),
}
