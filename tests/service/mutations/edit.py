"""Edit the copy of a bundle in a folder."""

import hashlib
import json

from service.bundle.manifest import FORMAT_VERSION

WEIGHTS, PARITY, SOURCE = "fp32/model.safetensors", "parity.npz", "source.tokenizer.json"
VERSION = b'"format_version": %d' % FORMAT_VERSION
TEXTS = {
    "empty": b"",
    "null": b"null",
    "list": b"[]",
    "random": bytes(range(256)),
    "utf-16": json.dumps({"format_version": FORMAT_VERSION}).encode("utf-16"),
    "deep": b"{" + VERSION + b',"origin":' + b"[" * 100_000,
    "number": b'{"format_version": 1e400}',
    "digits": b'{"format_version": ' + b"9" * 4000 + b"}",
    "large": b" " * (3 << 20) + b"{}",
    "many faults": b"{"
    + VERSION
    + b',"files":{'
    + b",".join(b'"%d":0' % i for i in range(99999))
    + b'},"a":0}',
}


def seal(folder):
    """Write the present sizes and hashes of the files into bundle.json."""
    manifest = json.loads((folder / "bundle.json").read_text())
    for name, entry in manifest["files"].items():
        content = (folder / name).read_bytes()
        entry |= {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / "bundle.json").write_text(json.dumps(manifest))


def write(name, content, folder):
    (folder / name).write_bytes(content)


def cut(name, share, folder):
    content = (folder / name).read_bytes()
    write(name, content[: int(len(content) * share)], folder)


def edit_json(name, change, folder):
    document = json.loads((folder / name).read_text())
    change(document)
    (folder / name).write_text(json.dumps(document))


def put(*path_and_value):
    """A change that sets the value at a path."""
    *path, last, value = path_and_value

    def change(document):
        for key in path:
            document = document[key]
        document[last] = value

    return change
