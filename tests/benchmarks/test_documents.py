"""The pages that the benchmarks write agree with their templates and numbers."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.kit.document import describe_machine, machine_line
from benchmarks.pronunciation import report as pronunciation_report
from benchmarks.pronunciation.report import Line, render, worst_words
from benchmarks.speed import attention
from benchmarks.speed.report import render as render_performance
from benchmarks.speed.report import write_results as write_performance
from model.evaluate import accuracy

DOCS = Path(__file__).parents[2] / "docs"


def test_the_machine_line_leaves_out_what_is_not_known():
    assert machine_line({"cpu": "A", "instructions": "", "cores": 2}) == "cpu A, cores 2"
    assert "onnxruntime " in machine_line(describe_machine())


def test_a_run_is_written_as_page_and_numbers(tmp_path):
    numbers = json.loads((DOCS / "performance.json").read_text())
    write_performance(numbers, tmp_path)
    for name in ("performance.md", "performance.json"):
        assert (tmp_path / name).read_bytes() == (DOCS / name).read_bytes()


def test_a_short_run_is_written_without_the_parts_of_the_base_model():
    numbers = json.loads((DOCS / "performance.json").read_text())
    for part in ("options", "memory", "lengths", "attention", "slow", "checkpoints", "agreement"):
        del numbers[part]
    text = render_performance(numbers)
    assert re.findall("^## (.*)", text, re.MULTILINE) == ["HTTP"]


@pytest.mark.parametrize(
    ("name", "template"),
    [
        ("attention-performance.md", attention.HEAD),
        ("pronunciation-accuracy.md", pronunciation_report.HEAD),
        ("pronunciation-accuracy.md", pronunciation_report.NOTES),
    ],
)
def test_a_document_has_the_text_of_its_template(name, template):
    document = (DOCS / name).read_text()
    for part in re.split(r"\{[^}]*\}", template):
        assert part in document


def test_attention_rows_are_written(tmp_path):
    attention.write_document([["a thing", "1 ms"]], tmp_path / "attention.md")
    assert (tmp_path / "attention.md").read_text().endswith("| a thing | 1 ms |\n")


def test_a_system_without_stress_has_empty_columns_in_the_table():
    references = [("A", "AH0"), ("A", "EY1"), ("B", "B IY1"), ("C", "S IY1")]
    found = accuracy({"A": "EY1", "B": "B IY0", "C": "K IY1"}, references)
    lines = [Line("one", found, 12.4), Line("two", found, has_stress=False)]
    text = render(lines, peer=50.0, worst=[["C", "S IY1", "K IY1", "1"]])
    assert "| one | 33.33 | 20.00 | 66.67 | 40.00 | 66.7 | 0.667 | 12 |" in text
    assert "| two | 33.33 | 20.00 |  |  |  | 0.667 |  |" in text
    assert text.endswith("| C | S IY1 | K IY1 | 1 |\n")


def test_the_worst_words_come_first_with_their_nearest_reference():
    references = [("A", "AH0 B"), ("A", "EY1"), ("B", "B IY1"), ("C", "S IY1 D")]
    predictions = {"A": "EY0", "B": "P IY1", "C": "K"}
    assert worst_words(predictions, references) == [
        ["C", "S IY1 D", "K", "3"],
        ["B", "B IY1", "P IY1", "1"],
        ["A", "EY1", "EY0", "0"],
    ]
