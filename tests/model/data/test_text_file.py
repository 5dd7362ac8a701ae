"""Text files that users give, as editors of Windows save them."""

import codecs

import pytest

from benchmarks.speed.agreement import read_source_texts
from model.align_command import read_sources
from model.data.pairs import read_pairs
from model.data.text_file import read_text
from model.importers.card import read_notice
from model.importers.checkpoint import read_toml
from model.importers.proofs.expected import read_expected
from model.importers.proofs.texts import read_lines
from model.importers.readme import read_front_matter
from model.importers.tokenizers.own import read_word_list
from model.network.config import InputError
from tests.model.runs import copying_run, small_command

PAIRS = "a\tb\r\n\r\n\ufeffc\td\r\n"  # a mark inside a text belongs to the text


@pytest.mark.parametrize(
    ("read", "content"),
    [
        (read_text, ""),
        (read_text, PAIRS),
        (read_pairs, PAIRS),
        (read_sources, PAIRS),
        (read_lines, PAIRS),
        (read_expected, PAIRS),
        (read_source_texts, PAIRS),
        (lambda path: read_word_list(path, "words"), "one\ntwo\n"),
        (read_toml, 'unit = "words"\n'),
        (lambda path: read_front_matter(path.parent), "---\nlicense: mit\n---\n"),
        (lambda path: read_notice(path.parent, "", ""), "All rights reserved.\n"),
    ],
)
def test_a_byte_order_mark_at_the_start_is_not_text(tmp_path, read, content):
    found = []
    for folder, mark in (("without", b""), ("with", codecs.BOM_UTF8)):
        (tmp_path / folder).mkdir()
        for name in ("README.md", "LICENSE"):
            (tmp_path / folder / name).write_bytes(mark + content.encode())
        found.append(read(tmp_path / folder / "README.md"))
    assert found[0] == found[1]


def test_a_file_of_another_encoding_is_named(tmp_path):
    for encoding in ("utf-16", "latin-1"):
        (tmp_path / "text").write_bytes("é".encode(encoding))
        with pytest.raises(InputError, match="text is not UTF-8: convert it"):
            read_text(tmp_path / "text")


def test_a_training_learns_no_byte_order_mark(tmp_path):
    _, pairs, _ = copying_run(tmp_path)
    said = []
    for mark in (b"", codecs.BOM_UTF8):
        pairs.write_bytes(mark + pairs.read_bytes())
        run = tmp_path / f"run{len(mark)}"
        done = small_command(pairs, "--dev", pairs, "--run", run, "--epochs", "1")
        said.append(next(line for line in done.stdout.splitlines() if "vocabulary" in line))
    assert said == ["vocabulary: 5 characters of sources, 5 words of targets"] * 2
