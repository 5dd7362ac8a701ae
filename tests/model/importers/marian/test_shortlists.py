"""Marian's binary shortlists are read, or refused in one sentence."""

import gzip
import tracemalloc
from functools import partial
from types import SimpleNamespace

import pytest

from model.importers.files.shortlist_file import LARGEST, MAGIC, find_shortlists, read_shortlists
from model.importers.usage.usage import read_marian_shortlists
from model.network.config import InputError
from tests.model.importers.marian.folders import shortlist_file, write_folder
from tests.model.importers.served import refusal

MOST = 200 << 20  # bytes
SOURCES, TARGETS = 5, 400
LISTS = [[7], [], [3, 9, 250], [399], []]
NAME = "lex.50.50.enpt.s2t.bin"


file_of = partial(shortlist_file, LISTS)
WHOLE = file_of()
HUGE = 1 << 62
DAMAGED = {
    "empty": (b"", "does not begin"),
    "a text": (b"the das 0.3\n" * 40, "does not begin"),
    "one line of text": (b"the das 0.3\n", "does not begin"),
    "a header cut within a number": (WHOLE[:45], "does not begin"),
    "a header cut": (WHOLE[:40], "does not begin"),
    "another magic": (file_of(magic=MAGIC + 1), "does not begin"),
    "cut": (WHOLE[:-4], "says that 5 of 5 tokens"),
    "longer": (WHOLE + bytes(8), "says that 5 of 5 tokens"),
    "a huge count of offsets": (file_of(counts=(HUGE, 5)), "says that"),
    "a huge count of ids": (file_of(counts=(6, HUGE)), "says that"),
    "no offsets": (shortlist_file([], offsets=[]), "says that -1"),
    "more tokens than the source has": (shortlist_file([[1]] * 6), "says that 6 of 5"),
    "a changed byte": (WHOLE[:-9] + b"\x01" + WHOLE[-8:], "checksum"),
    "another checksum": (file_of(hashed=0), "checksum"),
    "offsets that fall": (file_of(offsets=[0, 3, 1, 4, 5, 5]), "do not follow"),
    "offsets beyond the ids": (file_of(offsets=[0, 1, 1, 4, 5, HUGE]), "do not follow"),
    "a list longer than the longest": (file_of(longest=2), "do not follow"),
    "ids of another model": (shortlist_file([[TARGETS]]), "belongs to another model"),
    "many": (bytes(LARGEST + 1), "more than"),
}


@pytest.mark.parametrize("packed", [False, True])
def test_lists_are_read(tmp_path, packed):
    path = tmp_path / (f"{NAME}.gz" if packed else NAME)
    path.write_bytes(gzip.compress(WHOLE) if packed else WHOLE)
    assert find_shortlists(tmp_path) == path
    found = read_shortlists(path, SOURCES, TARGETS)
    for token, listed in enumerate(LISTS):
        assert found.of([token]) == {0, 1, *listed}
    assert found.of([0, 2, 4]) == {0, 1, 7, 3, 9, 250}


def test_the_last_tokens_of_a_source_may_have_no_list(tmp_path):
    path = tmp_path / NAME
    path.write_bytes(WHOLE)
    assert read_shortlists(path, SOURCES + 3, TARGETS).of([SOURCES + 2]) == {0, 1}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_files_are_refused(tmp_path, damage):
    content, said = DAMAGED[damage]
    path = tmp_path / NAME
    path.write_bytes(content)
    assert_refused(path, said)


def test_a_packed_bomb_is_refused(tmp_path):
    path = tmp_path / f"{NAME}.gz"
    path.write_bytes(gzip.compress(bytes(1 << 27), 1))
    assert_refused(path, "unpacks to more than")


def assert_refused(path, said):
    tracemalloc.start()
    try:
        with pytest.raises(InputError) as refused:
            read_shortlists(path, SOURCES, TARGETS)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    sentence = str(refused.value)
    assert said in sentence
    assert str(path) in sentence
    assert "\n" not in sentence
    assert most < MOST


@pytest.mark.parametrize("sizes", [[320, 320], [320, 330]])
def test_a_token_is_on_its_own_list_where_both_sides_have_one_vocabulary(tmp_path, sizes):
    options, _ = write_folder(tmp_path, **{"dim-vocabs": sizes, "tied-embeddings-all": False})
    (tmp_path / NAME).write_bytes(shortlist_file([[7], [5, 300]], frequent=1))
    found = read_marian_shortlists(
        SimpleNamespace(folder=tmp_path), config_of(*options["dim-vocabs"], eos_id=3)
    )
    own = sizes[0] == sizes[1]
    assert found.of([1]) == {0, 3, 5, 300, *([1] if own else [])}
    assert found.of([319]) == {0, 3, *([319] if own else [])}


def config_of(source, target, eos_id):
    return SimpleNamespace(source_vocab_size=source, target_vocab_size=target, eos_id=eos_id)


def test_a_folder_with_a_damaged_file_or_two_is_refused(tmp_path):
    folder = tmp_path / "model"
    write_folder(folder, **{"enc-depth": 1, "dec-depth": 1})
    (folder / NAME).write_bytes(WHOLE[:-4])
    assert NAME in refusal(folder, tmp_path / "bundle")
    (folder / "lex.enpt.bin").write_bytes(WHOLE)
    assert "has 2 files of shortlists" in refusal(folder, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
