"""In a shell, `heed` completes its commands, flags, values and files."""

import re
import sys

import pytest
from click.shell_completion import ShellComplete

from service.command.__main__ import COMMANDS, main

FILES = "names of files"
CHOICES = re.compile(r"^  (--[\w-]+) [\[<]?([\w-]+(?:\|[\w-]+)+)[\]>]?(?=\s)", re.M)


def complete(words):
    """Return what a shell is offered for the last of these words, `FILES` for names of files."""
    *arguments, incomplete = words.split(" ")[1:]
    shell = ShellComplete(main, {}, "heed", "_HEED_COMPLETE")
    found = shell.get_completions(arguments, incomplete)
    return [FILES if each.type == "file" else each.value for each in found]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_flag_completes_the_values_that_help_names(heed, command):
    choices = CHOICES.findall(heed(command, "--help").stdout)
    assert bool(choices) is (command not in ("score", "evaluate", "align"))
    for flag, values in choices:
        assert complete(f"heed {command} {flag} ") == values.split("|")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("heed e", ["evaluate", "export"]),
        ("heed decode --top", ["--top-k", "--top-p", "--top-log-probs"]),
        ("heed serve --pr", ["--protocols", "--provider", "--precision"]),
        ("heed serve --port 1 --precision f", ["fp32", "fp16"]),
        ("heed serve --port ", []),
        ("heed decode --split ", ["none", "sentences"]),
        ("heed attention a --reduce-layers m", ["mean", "max"]),
        ("heed attention a --kinds cross,e", ["cross,encoder"]),
        ("heed serve bun", [FILES]),
        ("heed decode --input wor", [FILES]),
        ("heed train tr", [FILES]),
        ("heed convert checkpoint bun", [FILES]),
        ("heed train train.tsv --dev d", [FILES]),
        ("heed train train.tsv --case ke", ["keep"]),
        ("heed train --case keep tr", [FILES]),
        ("heed export --no", ["--notice"]),
    ],
)
def test_completion(words, offered):
    assert sorted(complete(words)) == sorted(offered)


def test_completion_without_the_extra_prints_nothing(monkeypatch, capfd):
    monkeypatch.delitem(sys.modules, "model.__main__", raising=False)
    monkeypatch.setitem(sys.modules, "typer", None)  # as if it were not installed
    assert complete("heed convert --") == []
    assert capfd.readouterr() == ("", "")
