"""docs/command.md and other pages: `heed` prints what they show, and takes the flags that they
give it."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from service.command.__main__ import COMMANDS, main
from service.command.serve import make_serve_parser
from service.settings.command_line import read_settings
from tests.documentation import assert_shown, commands

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
TEXT = "".join(page.read_text(encoding="utf-8") for page in PAGES)
FILES = TEXT.split("\n## Files\n")[1].split("\n## ")[0]
REST = TEXT.replace(FILES, "")
SHOWN = [(command, shown) for command, shown in commands(REST) if command.startswith("heed ")]
CODE = re.findall(r"^```sh\n(.*?)^```", TEXT, re.M | re.S)
TYPED = [line for block in CODE for line in re.findall(r"^heed .*$", block, re.M)]


@pytest.mark.parametrize(("command", "shown"), SHOWN)
def test_commands_print_what_is_shown(heed, command, shown, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = heed(*shlex.split(command)[1:])
    assert done.exit_code == 0, done.output
    assert_shown(done.stdout.rstrip("\n"), shown.rstrip("\n"))
    written = re.findall(r" -o (\S+)", command)
    assert [path.name for path in tmp_path.iterdir()] == written


def test_files_are_written_as_shown(tmp_path):
    (tmp_path / "heed").write_text(f'#!/bin/sh\nexec {sys.executable} -m service.command "$@"\n')
    (tmp_path / "heed").chmod(0o755)
    paths = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    for command, shown in commands(FILES):
        done = subprocess.run(
            command,
            shell=True,
            cwd=tmp_path,
            env=os.environ | paths,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == shown


@pytest.mark.parametrize("command", TYPED)
def test_other_commands_can_be_typed(command):
    _, name, *arguments = shlex.split(command, comments=True)
    assert name in COMMANDS
    if name == "serve":
        flags = [each for each in arguments if each.startswith("--") or each.isdigit()]
        assert read_settings(flags, make_serve_parser())
    elif COMMANDS[name][1] != "model":
        assert main.get_command(None, name).make_context(name, arguments)


def test_every_command_is_described():
    page = (ROOT / "docs" / "command.md").read_text(encoding="utf-8")
    assert all(re.search(rf"`?heed {name}|`{name}`", page) for name in COMMANDS)
