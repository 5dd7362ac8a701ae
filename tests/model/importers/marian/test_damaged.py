"""Damaged files of Marian are refused in one sentence, before anything large is computed."""

import errno
import gzip
import io
import shutil
import struct
import tracemalloc
import zipfile
from contextlib import nullcontext

import numpy as np
import pytest

from model.importers.files.archive import unpacked
from model.importers.files.npz_file import open_npz
from model.importers.files.reading import unpack
from model.network.config import InputError
from tests.model.importers.marian.folders import (
    FP32,
    INT8,
    OPTIONS,
    TEXT,
    binary_of,
    items_of,
    padded,
    random_tensors,
    write_folder,
    write_npz,
    yaml_of,
    zip_folder,
)
from tests.model.importers.served import refusal

MOST = 200 << 20  # bytes
SMALL = OPTIONS | {"enc-depth": 1, "dec-depth": 1}
TENSORS = random_tensors(SMALL)
NPZ, BINARY, OPTION, YAML = "model.npz", "model.enpt.intgemm.bin", "special:model.yml", b"type: x\n"


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def header(text, version=1, size=None):
    """Return an array of NumPy with this header, and no numbers."""
    content = text.encode().ljust(118) + b"\n"
    length = struct.pack("<H" if version == 1 else "<I", len(content) if size is None else size)
    return b"\x93NUMPY" + bytes([version, 0]) + length + content


def described(shape="(4, 4)", kind="<f4", order="False"):
    return header(f"{{'descr': '{kind}', 'fortran_order': {order}, 'shape': {shape}, }}")


def archive(members, compression=zipfile.ZIP_STORED, options=YAML):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as written:
        if options is not None:
            text = np.frombuffer(options, np.int8)
            written.writestr(f"{OPTION}.npy", npy(text))
        for name, content in members.items():
            written.writestr(name, content)
    return file.getvalue()


def whole_npz():
    file = io.BytesIO()
    write_npz(file, SMALL, TENSORS, compressed=True)
    return file.getvalue()


def whole_binary():
    return binary_of(items_of(SMALL, TENSORS, int8=True))


def changed(content, place, number):
    """Return a binary file with another number at a place, in bytes."""
    return content[:place] + struct.pack("<Q", number) + content[place + 8 :]


def with_option(name, value):
    return binary_of(items_of(SMALL | {name: value}, TENSORS, int8=True))


def with_text(text):
    items = [item for item in items_of(SMALL, TENSORS, True) if item[0] != OPTION]
    return binary_of([*items, (OPTION, TEXT, (len(text),), padded(text))])


def with_item(*item):
    return binary_of([*items_of(SMALL, TENSORS, True), item])


def flipped(content, every):
    damaged = bytearray(content)
    for place in range(len(damaged) // 3, len(damaged), every):
        damaged[place] ^= 0x55
    return bytes(damaged)


def stored_twice():
    content = archive({name: npy(np.zeros((2, 2), np.float32)) for name in ("Wemb", "Wemc")})
    return content.replace(b"Wemc", b"Wemb")


HUGE, MANY = (1 << 62), 2**31 - 1
ARRAYS = {  # name of the damage: the file
    "empty": b"",
    "a byte": b"P",
    "text": b"This is not a model.",
    "zeros": bytes(4096),
    **{
        f"cut at {share} %": whole_npz()[: len(whole_npz()) * share // 100] for share in (5, 50, 99)
    },
    "changed bytes": flipped(whole_npz(), 97),
    "no options": archive({"Wemb.npy": npy(np.zeros((2, 2), np.float32))}, options=None),
    "no members": archive({}, options=None),
    "nothing but options": archive({}),
    "no array": archive({"Wemb.npy": b"text"}),
    "an empty member": archive({"Wemb.npy": b""}),
    "cut numbers": archive({"Wemb.npy": npy(np.zeros((9, 9), np.float32))[:-8]}),
    "more numbers": archive({"Wemb.npy": npy(np.zeros((9, 9), np.float32)) + b"12345678"}),
    "a huge axis": archive({"Wemb.npy": described(f"({1 << 40}, 4)")}),
    "huge axes": archive({"Wemb.npy": described(f"({MANY}, {MANY}, {MANY}, {MANY})")}),
    "many axes": archive({"Wemb.npy": described(f"({'1, ' * 30})")}),
    "no axis": archive({"Wemb.npy": described("()")}),
    "a negative axis": archive({"Wemb.npy": described("(-4, -4)")}),
    "an axis of zero": archive({"Wemb.npy": described("(0, 4)")}),
    "an axis that is a text": archive({"Wemb.npy": described("('a', 4)")}),
    "objects": archive({"Wemb.npy": described(kind="|O")}),
    "integers": archive({"Wemb.npy": npy(np.zeros((2, 2), np.int64))}),
    "big endian": archive({"Wemb.npy": npy(np.zeros((2, 2), ">f4"))}),
    "a header of code": archive({"Wemb.npy": header("__import__('os').system('true')")}),
    "a header of brackets": archive({"Wemb.npy": header("(" * 900)}),
    "a header with a list as a key": archive({"Wemb.npy": header("{[]: 1}")}),
    "a header of mixed keys": archive({"Wemb.npy": header("{1: 0, 'a': 0}")}),
    "a header without a type": archive({"Wemb.npy": described(kind=",f4")}),
    "a header of half a type": archive(
        {"Wemb.npy": header("{'descr': ('<f4',), 'fortran_order': False, 'shape': (2,)}")}
    ),
    "a long header": archive({"Wemb.npy": header("{}", size=60000)}),
    "another version": archive({"Wemb.npy": header("{}", version=2, size=1 << 31)}),
    "options as numbers": archive({f"{OPTION}.npy": npy(np.zeros(4, np.float32))}, options=None),
    "long options": archive({}, options=b"a" * (1 << 17)),
    "a bomb": archive(
        {"Wemb.npy": described("(2048, 8192)") + bytes(1 << 26)}, zipfile.ZIP_DEFLATED
    ),
    "twice the same": stored_twice(),
    "a name with a path": archive({"../../Wemb.npy": npy(np.zeros((2, 2), np.float32))}),
}
BINARIES = {
    "empty": b"",
    "seven bytes": bytes(7),
    "text": b"This is not a model at all.",
    "version 2": changed(whole_binary(), 0, 2),
    "version 0": changed(whole_binary(), 0, 0),
    **{
        f"cut at {share} %": whole_binary()[: len(whole_binary()) * share // 100]
        for share in (1, 5, 50, 99)
    },
    "no items": changed(whole_binary(), 8, 0),
    "an item more": changed(whole_binary(), 8, len(list(items_of(SMALL, TENSORS, True))) + 1),
    "too many items": changed(whole_binary(), 8, HUGE),
    "a long name": changed(whole_binary(), 16, HUGE),
    "a name of nothing": changed(whole_binary(), 16, 0),
    "an unknown type": changed(whole_binary(), 24, 0x77),
    "integers of 16 bits": changed(whole_binary(), 24, 0x4102),
    "half precision": changed(whole_binary(), 24, 0x402),
    "as single precision": changed(whole_binary(), 24, FP32),
    "many axes": changed(whole_binary(), 32, HUGE),
    "no axes": changed(whole_binary(), 32, 0),
    "long data": changed(whole_binary(), 40, HUGE),
    "short data": changed(whole_binary(), 40, 256),
    "huge axes": with_item("more", FP32, (MANY, MANY, MANY, MANY), bytes(256)),
    "a negative axis": with_item("more", FP32, (-4, 4), bytes(256)),
    "an axis of zero": with_item("more", INT8, (0, 4), bytes(256)),
    "an item that no model has": with_item("more", FP32, (4, 4), bytes(256)),
    "an item twice": with_item("Wemb", FP32, (4, 4), bytes(256)),
    "scale zero": with_item("more", INT8, (4, 4), bytes(256)),
    "scale NaN": with_item("more", INT8, (4, 4), padded(bytes(16) + struct.pack("<f", np.nan))),
    "no options": binary_of(i for i in items_of(SMALL, TENSORS, True) if i[0] != OPTION),
    "options of zeros": with_text(bytes(64)),
    "options of brackets": with_text(b"[" * 60000),
    "options of aliases": with_text(b"a: &a [x]\nb: *a\n"),
    "options in depth": with_text(b"a: {b: {c: d}}\n"),
    "options of a list": with_text(b"- type\n- transformer\n"),
    "options of a word": with_text(b"transformer"),
    "options in no encoding": with_text(b"type: \xff\xfe\n"),
    "options of control signs": with_text(b"type: \x07\n"),
    "long options": with_text(b"a: b\n" * 60000),
    "a width of another model": with_option("dim-emb", 64),
    "a huge width": with_option("dim-emb", 10**9),
    "an endless width": with_option("dim-emb", "9" * 5000),
    "a width of words": with_option("dim-emb", "wide"),
    "an odd width": with_option("dim-emb", 33),
    "huge vocabularies": with_option("dim-vocabs", [10**9 - 1, 10**9 - 1]),
    "one vocabulary": with_option("dim-vocabs", [320]),
    "a million layers": with_option("enc-depth", 10**6),
    "no layers": with_option("dec-depth", 0),
    "a layer less": with_option("transformer-heads", 3),
    "a huge layer": with_option("transformer-dim-ffn", 10**9),
}
VOCABULARIES = {
    "vocab.enpt.spm": {
        "empty": b"",
        "zeros": bytes(4096),
        "text": b"not pieces",
        "cut": lambda content: content[: len(content) // 2],
    },
    "vocab.yml": {
        "empty": b"",
        "a list": b"- a\n- b\n",
        "brackets": b"[" * 200000,
        "numbers of words": b"</s>: 0\n<unk>: one\n",
        "a hole": b"</s>: 0\n<unk>: 2\n",
        "without the end": b"<unk>: 0\na: 1\n",
        "more tokens than rows": b"".join(b"t%d: %d\n" % (i + 2, i + 2) for i in range(5000))
        + b"</s>: 0\n<unk>: 1\n",
        "zeros": bytes(4096),
        "not utf-8": b"</s>: 0\n\xff: 1\n",
    },
}


def assert_refused(path, tmp_path):
    """The sentence names a file and says what to do; no large memory is needed."""
    tracemalloc.start()
    try:
        sentence = refusal(path, tmp_path / "bundle")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < MOST
    assert len(sentence) < 600
    assert str(path) in sentence
    assert not (tmp_path / "bundle").exists()
    return sentence


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    write_folder(folder / "spm", container="int8", **{"enc-depth": 1, "dec-depth": 1})
    write_folder(folder / "yml", container="int8", vocabulary="yml", **{"enc-depth": 1})
    return folder


def copied(folder, tmp_path, without=()):
    """Return a folder with the vocabularies of another."""
    (tmp_path / "model").mkdir()
    for path in folder.iterdir():
        if not path.name.startswith(without):
            (tmp_path / "model" / path.name).write_bytes(path.read_bytes())
    return tmp_path / "model"


@pytest.mark.parametrize("damage", ARRAYS)
def test_damaged_arrays(damage, whole, tmp_path):
    folder = copied(whole / "spm", tmp_path, "model")
    (folder / NPZ).write_bytes(ARRAYS[damage])
    assert_refused(folder, tmp_path)


@pytest.mark.parametrize("damage", BINARIES)
def test_damaged_binaries(damage, whole, tmp_path):
    folder = copied(whole / "spm", tmp_path, "model")
    (folder / BINARY).write_bytes(BINARIES[damage])
    assert_refused(folder, tmp_path)


@pytest.mark.parametrize(
    ("name", "damage"), [(name, each) for name in VOCABULARIES for each in VOCABULARIES[name]]
)
def test_damaged_vocabularies(name, damage, whole, tmp_path):
    folder = copied(whole / name.rpartition(".")[2], tmp_path)
    content = VOCABULARIES[name][damage]
    if not isinstance(content, bytes):
        content = content((folder / name).read_bytes())
    (folder / name).write_bytes(content)
    assert_refused(folder, tmp_path)


PACKED = {
    "cut": lambda content: gzip.compress(content)[:-100],
    "not packed": lambda content: content,
    "a bomb": lambda content: gzip.compress(bytes(1 << 26)),
    "changed": lambda content: flipped(gzip.compress(content), 61),
}


@pytest.mark.parametrize("damage", PACKED)
def test_damaged_gzip(damage, whole, tmp_path):
    folder = copied(whole / "spm", tmp_path, "model")
    content = PACKED[damage](whole_binary())
    (folder / f"{BINARY}.gz").write_bytes(content)
    assert_refused(folder, tmp_path)


def test_a_file_packed_in_parts_is_read_whole(tmp_path):
    """RFC 1952, 2.2: a file may have several members."""
    parts = gzip.compress(b"first ") + gzip.compress(b"second")
    assert unpack(parts, tmp_path) == b"first second"


def bomb(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as written:
        written.writestr("model.npz", bytes(1 << 26))


def cut(path):
    path.write_bytes(path.read_bytes()[:-30])


def doubled(path):
    with zipfile.ZipFile(path, "a") as written:
        written.writestr("another/model.enpt.intgemm.alphas.bin", b"")


def of_two_models(path):
    with zipfile.ZipFile(path, "a") as written:
        written.writestr("opus/model.enfr.bin", b"")


def emptied(path):
    with zipfile.ZipFile(path, "w"):
        pass


@pytest.mark.parametrize("damage", [bomb, cut, doubled, of_two_models, emptied])
def test_damaged_zips(damage, whole, tmp_path):
    path = zip_folder(whole / "spm", tmp_path / "opus.zip")
    damage(path)
    assert str(path) in refusal(path, tmp_path / "bundle")


@pytest.mark.parametrize(
    ("file", "said"), [(NPZ, f"/{NPZ} is "), ("decoder.yml", "/decoder.yml is ")]
)
def test_a_damaged_file_in_a_zip_is_named_in_the_zip(file, said, whole, tmp_path):
    folder = copied(whole / "spm", tmp_path, "model" if file == NPZ else "decoder")
    (folder / file).write_bytes(b"\xff" * 99)
    path = zip_folder(folder, tmp_path / "opus.zip")
    assert refusal(path, tmp_path / "bundle").startswith(f"heed: {path}{said}")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("read", [unpacked, lambda path: nullcontext(open_npz(path))])
def test_what_other_methods_pack_is_refused_unread(method, read, tmp_path):
    """LZMA may ask for 4 GB to unpack a byte, and its library has errors of its own."""
    path = tmp_path / "opus.zip"
    path.write_bytes(flipped(archive({"model.npz": bytes(99)}, method), 70))
    with pytest.raises(InputError, match="by another method than deflate"), read(path):
        pass


@pytest.mark.parametrize("name", ["other.zip", "OTHER.ZIP"])
def test_a_zip_of_another_program_is_named(name, tmp_path):
    path = tmp_path / name
    with zipfile.ZipFile(path, "w") as written:
        written.writestr("model.safetensors", b"")
        written.writestr("config.json", b"{}")
    sentence = refusal(path, tmp_path / "bundle")
    assert f"{path} has no weights of Marian, *.npz or *.bin or *.bin.gz: unpack" in sentence


def test_a_full_disk_is_not_called_damage(whole, tmp_path, monkeypatch):
    path = zip_folder(whole / "spm", tmp_path / "opus.zip")

    def fill(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", fill)
    with pytest.raises(InputError, match="set TMPDIR to a larger disk"), unpacked(path):
        pass


def test_names_in_a_zip_choose_no_place(whole, tmp_path):
    path = tmp_path / "opus.zip"
    with zipfile.ZipFile(path, "w") as written:
        written.writestr("../../escaped.yml", yaml_of(SMALL))
        written.writestr("/escaped.npz", b"")
        written.writestr("..\\escaped.spm", b"")
    (tmp_path / "in").mkdir()
    refusal(path, tmp_path / "in" / "bundle")
    assert [each.name for each in tmp_path.rglob("*escaped*")] == []
