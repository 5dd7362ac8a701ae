"""Damaged and hostile files of torch's results."""

import io
import struct
import zipfile
from functools import partial

import numpy as np

from tests.service.mutations.edit import PARITY, cut, write

ARRAYS = (
    *("source_ids", "source_length", "decoder_input_ids", "decoder_length", "memory"),
    *("log_prob_ids", "log_probs", "encoder_attention_2", "decoder_attention_1"),
    "cross_attention_0",
)


def edit_arrays(change, folder):
    with np.load(folder / PARITY) as file:
        arrays = dict(file)
    change(arrays)
    np.savez(folder / PARITY, **arrays)


def array(name, change):
    """Replace an array by what `change` makes of it."""
    return partial(edit_arrays, lambda arrays: arrays.update({name: change(arrays[name])}))


def add_member(name, content, compression, folder):
    with np.load(folder / PARITY) as arrays:
        kept = {each: arrays[each] for each in arrays.files if f"{each}.npy" != name}
    np.savez(folder / PARITY, **kept)
    with zipfile.ZipFile(folder / PARITY, "a", compression) as file:
        file.writestr(name, content)


def edit_directory(offset, value, folder):
    """Set bytes of each member's entry in the directory of the archive."""
    content = bytearray((folder / PARITY).read_bytes())
    place = content.find(b"PK\1\2")
    while place >= 0:
        content[place + offset : place + offset + len(value)] = value
        place = content.find(b"PK\1\2", place + 1)
    write(PARITY, bytes(content), folder)


def npy(header, data=b""):
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + data


def bomb():
    """300 MB of zeros in 300 kB."""
    content = io.BytesIO()
    np.save(content, np.zeros(75 << 20, np.float32))
    return content.getvalue()


def with_bomb(folder):
    add_member("memory.npy", bomb(), zipfile.ZIP_DEFLATED, folder)


SHAPE = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }"
PARITIES = {
    "parity empty": partial(write, PARITY, b""),
    "parity random": partial(write, PARITY, bytes(range(256)) * 9),
    "parity cut": partial(cut, PARITY, 0.5),
    "parity of no arrays": partial(write, PARITY, b"PK\5\6" + bytes(18)),
    "parity of 65 MiB": partial(write, PARITY, bytes(65 << 20)),
    **{f"no {name}": partial(edit_arrays, lambda a, name=name: a.pop(name)) for name in ARRAYS},
    **{f"{name} longer": array(name, lambda a: np.concatenate([a, a])) for name in ARRAYS},
    **{f"{name} of objects": array(name, lambda a: a.astype(object)) for name in ARRAYS[:2]},
    **{f"{name} a scalar": array(name, lambda a: a.ravel()[0]) for name in ARRAYS},
    "parity of strings": array("memory", lambda a: a.astype("U9")),
    "parity complex": array("memory", lambda a: a.astype(complex)),
    "parity of columns": array("memory", lambda a: np.asfortranarray(a)),
    "no sources": partial(edit_arrays, lambda a: a.update({k: v[:0] for k, v in a.items()})),
    "ids too large": array("source_ids", lambda a: a + 10),
    "ids negative": array("decoder_input_ids", lambda a: a - 20),
    "ids of floats": array("source_ids", lambda a: a.astype(np.float64)),
    "length 0": array("source_length", lambda a: a * 0),
    "length 10^9": array("decoder_length", lambda a: a * 0 + 10**9),
    "ids of log-probs too large": array("log_prob_ids", lambda a: a + 2**40),
    "NaN in memory": array("memory", lambda a: a * np.nan),
    "other memory": array("memory", lambda a: a + 0.01),
    "other log-probs": array("log_probs", lambda a: a + 0.01),
    "other attention": array("cross_attention_0", lambda a: a + 0.01),
    "bomb": with_bomb,
    **{
        f"sizes of {size}": partial(edit_directory, 24, struct.pack("<I", size))
        for size in (0xFFFFFFFE, 0, 130)
    },
    "encrypted": partial(edit_directory, 8, b"\1"),
    "unknown compression": partial(edit_directory, 10, b"\x63"),
    "huge header": partial(
        add_member, "memory.npy", npy(SHAPE % ("<f4", (1 << 60,))), zipfile.ZIP_STORED
    ),
    "negative header": partial(
        add_member, "memory.npy", npy(SHAPE % ("<f4", (-1,))), zipfile.ZIP_STORED
    ),
    "header that is code": partial(
        add_member, "memory.npy", npy("__import__('os').abort()"), zipfile.ZIP_STORED
    ),
    "compressed otherwise": partial(add_member, "more.npy", bytes(999), zipfile.ZIP_LZMA),
}
