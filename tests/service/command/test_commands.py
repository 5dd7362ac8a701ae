"""The command heed: what it prints, and that it answers as the service does."""

import json
import os
import re
import tomllib
from pathlib import Path
from subprocess import PIPE

import click
import numpy as np
import pytest

from service.api.endpoints.attention import AttentionRequest
from service.api.endpoints.attribution import AttributionRequest
from service.api.endpoints.decode.body import DecodeRequest
from service.api.endpoints.score import ScoreRequest
from service.api.reading.requests import AttentionSelection
from service.command.__main__ import COMMANDS, main
from service.command.errors import IN_FLAGS
from service.command.serve import TAKES
from service.settings.settings import Settings
from tests.service.processes import run_python

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORDS = ["heed", "knight", "attention"]
ABLATED = [
    {"kind": "cross", "layer": -1, "heads": [0, 1]},
    {"kind": "encoder", "layer": 0, "heads": "all"},
]
SHARES = {"words": True, "source_share": True}


def flags(name):
    """Return the flags of a command, named like fields."""
    command = main.get_command(click.Context(main), name)
    return {each.name for each in command.params if isinstance(each, click.Option)}


def test_advice_that_commands_replace_is_given_by_the_service():
    sources = {*ROOT.glob("service/**/*.py")} - {ROOT / "service" / "command" / "errors.py"}
    said = "".join(each.read_text() for each in sources)
    assert [words for words in IN_FLAGS if words not in said] == []


def test_help_lists_every_command_in_order(heed):
    lines = heed("--help").stdout.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in lines if line[2:3].strip()][: len(COMMANDS)] == [*COMMANDS]


def test_version(heed):
    assert heed("--version").stdout == f"heed {PROJECT['version']}\n"


def test_the_script_is_installed():
    assert PROJECT["scripts"] == {"heed": "service.command.__main__:main"}


def test_decode_prints_what_the_service_answers(heed, post):
    _, answered = post("/v1/decode", source=WORDS)
    texts = [result["hypotheses"][0]["text"] for result in answered["results"]]
    assert heed("decode", *WORDS).stdout.splitlines() == texts
    assert heed("decode", stdin="\n".join(WORDS)).stdout.splitlines() == texts


@pytest.mark.parametrize(
    ("path", "arguments", "body"),
    [
        (
            "/v1/decode",
            ["decode", "ax", "--beam-size", "3", "--num-hypotheses", "2", "--stop", "K"],
            {"source": ["ax"], "beam_size": 3, "num_hypotheses": 2, "stop": ["K"]},
        ),
        (
            "/v1/attention",
            ["attention", "ax", "AE1 K S", "--layers=-1,0", "--heads", "all", "--kinds=cross"],
            {"source": "ax", "target": "AE1 K S", "attention": {"layers": [-1, 0]}},
        ),
        ("/v1/score", ["score", "ax", "AE1 K S"], {"source": ["ax"], "target": ["AE1 K S"]}),
        (
            "/v1/score",
            ["score", "ax", "AE1 K S", "--ablate", "cross:-1:0,1", "--ablate=encoder:0:all"],
            {"source": ["ax"], "target": ["AE1 K S"], "ablate": ABLATED},
        ),
        (
            "/v1/decode",
            ["decode", "ax", "--ablate=cross:-1:0,1", "--ablate", "encoder:0:all", "--words"],
            {"source": ["ax"], "ablate": ABLATED, "words": True},
        ),
        (
            "/v1/decode",
            ["decode", "ax", "--no-source-final", "--hold", "1", "--words", "--source-share"],
            {"source": ["ax"], "source_final": False, "hold": 1, **SHARES},
        ),
        (
            "/v1/attribution",
            ["attribution", "ax", "AE1 K S", "--contrast", "AE1 K", "--unit=word"],
            {"source": "ax", "target": "AE1 K S", "contrast": "AE1 K", "unit": "word"},
        ),
        (
            "/v1/attribution",
            ["attribution", "ax", "--of", "heads", "--decimals", "2", "--max-new-tokens", "2"],
            {"source": "ax", "of": "heads", "decimals": 2, "max_new_tokens": 2},
        ),
    ],
)
def test_json_is_the_service_s_own(heed, post, path, arguments, body):
    status, answered = post(path, **body)
    assert status == 200
    printed = heed(*arguments, "--json").stdout
    assert (json.loads(printed), printed.count("\n")) == (answered, 1)


def test_a_source_that_grows_prints_what_is_committed(heed, post):
    """As the client of docs/simultaneous.md reads it."""
    committed = ""
    for source in ("pro", "pronun", "pronunciation"):
        asked = ["decode", source, "--no-source-final", "--hold", "2"]
        printed = heed(*asked, "--target-prefix", committed).stdout
        _, answered = post(
            "/v1/decode", source=source, source_final=False, hold=2, target_prefix=committed
        )
        (found,) = answered["results"][0]["hypotheses"]
        assert printed == f"{found['committed']['text']}\t{found['tentative']}\n"
        committed, _, tentative = printed.rstrip("\n").partition("\t")
        assert (committed + tentative, bool(committed)) == (found["text"], True)


def test_attribution_is_drawn_by_its_losses(heed, post):
    """The darkest cell is the largest loss, and a row has its source share."""
    title, _, head, *lines = heed("attribution", "thought").stdout.splitlines()
    _, answered = post("/v1/attribution", source="thought")
    (result,) = answered["results"]
    data = np.array(result["attribution"][0]["data"])
    tokens = [row["text"] for row in result["attribution"][0]["rows"]]
    assert title == f"thought → {result['target']}"
    assert head == f"log-prob lost, at most {data.max():.2f}"
    rows = lines[-len(data) :]
    for token, share, row, losses in zip(tokens, result["source_share"], rows, data, strict=True):
        label, shown, *_ = row.split()
        assert (label, shown) == (token, f"{share:.2f}")
        assert ("█" in row) == (losses.max() / data.max() >= 0.8)


def test_heads_and_foils_are_drawn(heed):
    heads = heed("attribution", "ax", "--of", "heads").stdout
    assert [line.split(",")[0] for line in heads.splitlines() if ", at most" in line] == [
        f"{kind} heads" for kind in ("encoder", "decoder", "cross")
    ]
    assert "at most 0.00" not in heads
    foil = heed("attribution", "read", "R EH1 D", "--contrast", "R IY1 D").stdout
    assert "lead over the foil lost, at most" in foil
    assert "EH1, not IY1 " in foil


def test_a_glossary_is_a_file_of_words_and_targets(heed, post, tmp_path):
    (tmp_path / "glossary.tsv").write_text("read\tEH1\n\nlead\tIY1\n")
    asked = ["decode", "read", "heed", "--glossary", str(tmp_path / "glossary.tsv"), "--json"]
    status, answered = post(
        "/v1/decode", source=["read", "heed"], glossary={"read": "EH1", "lead": "IY1"}
    )
    assert status == 200
    assert json.loads(heed(*asked).stdout) == answered


def test_a_line_of_a_glossary_without_a_target_is_refused(heed, tmp_path):
    (tmp_path / "glossary.tsv").write_text("read EH1\n")
    refused = heed("decode", "read", "--glossary", str(tmp_path / "glossary.tsv"))
    assert refused.exit_code == 2
    assert "the line 'read EH1'" in " ".join(refused.stderr.split())


def test_every_field_of_a_request_has_a_flag():
    """But for those that only programs need."""
    fields = DecodeRequest.model_fields.keys() - {"source", "stream", "attention"}
    assert flags("decode") - {"source", "output"} == fields | {"bundle", "url", "as_json"}
    fields = AttentionRequest.model_fields.keys() - {"source", "target", "partial"}
    fields = fields - {"attention"} | AttentionSelection.model_fields.keys()
    assert flags("attention") == fields | {"bundle", "url", "as_json", "output"}
    fields = AttributionRequest.model_fields.keys() - {"source", "target", "partial"}
    assert flags("attribution") == fields | {"bundle", "url", "as_json", "output"}
    fields = ScoreRequest.model_fields.keys() - {"source", "target"}
    assert flags("score") == fields | {"bundle", "url", "as_json"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["dekode", "ax"], "No such command 'dekode'. Did you mean decode?"),
        (["frobnicate"], "No such command 'frobnicate'."),
        (["decode", "ax", "--beam-size", "99"], "heed: --beam-size must be at most 64\n"),
        (["decode", "ax", "é"], "heed: source 2 has 'é' at offset 0, which the vocabulary lacks"),
        (["decode", "a" * 99], "give --split sentences to decode its sentences one by one"),
        (["attention", "ax", "--layers", "3"], "heed: --layers is 3 but there is no such cross"),
        (["attention", "ax", "-o", "a.gif"], "a.gif must end in one of .json, .npz"),
        (["attention", "ax", "--heads", "first"], "'first' is not a list of integers such as 0,-1"),
        (["score", "ax"], "give a TARGET as well"),
        (["decode", "ax", "--ablate", "cross"], "'cross' is not of the form cross:-1:0,1"),
        (["decode", "ax", "--ablate", "cross:9:0"], "heed: --ablate is 9 but there is no such"),
        (
            ["decode", "ax", "--hold", "2"],
            "heed: --hold has no effect on a whole source: give --no-source-final, or omit --hold",
        ),
        (
            ["decode", "ax", "--source-share", "--json"],
            "heed: --source-share is a number of words: give --words, or omit --source-share",
        ),
        (
            ["decode", "ax", "--top-p", "0.5"],
            "has no effect without sampling: set --temperature above 0, or omit --top-p",
        ),
        (
            ["attribution", "ax", "--of", "heads", "--unit", "word"],
            "heed: --unit has no effect with --of heads: omit --unit, or give --of source",
        ),
        (
            ["attention", "ax", "--threshold", "0.5"],
            "give --alignment threshold, or omit --threshold",
        ),
        (
            ["decode", "ax", "--num-hypotheses", "2"],
            "raise --beam-size, or sample with --temperature above 0",
        ),
        (["attention", "ax", "--rows", "3,3"], "give [start, stop), start before stop"),
        (
            ["attention", "ax", "AE1 K S", "--beam-size", "2"],
            "omit it, or omit target to decode the sources",
        ),
        (["attribution", "ax", "-o", "a.html"], "a.html must end in one of .json, .npz"),
        (["decode", "ax", "--bundle", ROOT], "is not a bundle"),
        (["decode", "ax", "--bundle", ROOT, "--url", "http://a"], "give --bundle or --url"),
        (["score", "ax", "AE1", "--model", "a"], "--model chooses a model of a service"),
        (["decode", "ax", "--url", ""], "it is empty: give an address such as http://localhost"),
        (["attention", "ax", "--url", ""], "it is empty: give an address such as http://localhost"),
        (["attention", "ax", "--url", "a:1"], "a:1 has no http:// before it: give http://a:1"),
        (["decode", "ax", "--url", "ftp://a"], "ftp://a has no http:// before it: give http://a"),
        (["serve", "nothing"], f"heed: nothing does not exist: {TAKES}"),
        (["serve", "./nothing"], f"heed: ./nothing does not exist: {TAKES}"),
        (["serve", "../nothing"], f"heed: ../nothing does not exist: {TAKES}"),
        (["serve", "nothing.zip"], f"heed: nothing.zip does not exist: {TAKES}"),
        (["serve", __file__], f"test_commands.py is a file: {TAKES}"),
        (
            ["decode", "ax", "--bundle", ROOT / "docs"],
            "docs is not a bundle: it has no bundle.json; write a bundle with",
        ),
        (["serve", "owner/my--model"], "heed: owner/my--model is not a folder, nor an id of the"),
        (["serve", f"a/{'b' * 99}"], "bbb is not a folder, nor an id of the hub: "),
        (
            ["decode", "New York7"],
            "reads one word at a time, so give each word by itself; give only",
        ),
        (["decode", "é", "ax", "longer7"], "heed: source 1 has 'é' at offset 0"),
        (["attention", "ax", "-o", "nowhere/a.png"], "the folder nowhere does not exist"),
        (["serve", "--port", "1", "a/b"], "models come before flags; heed serve --help lists all"),
    ],
)
def test_errors_name_what_was_typed(heed, arguments, said):
    done = heed(*arguments)
    assert done.exit_code != 0
    assert said in done.output
    assert "Traceback" not in done.output


def test_a_bad_line_ends_the_work_or_is_left_empty(heed):
    lines = "".join(f"{word}\n" for word in ["a"] * 300 + ["", "heed"])
    stopped = heed("decode", stdin=lines)
    assert stopped.exit_code == 1
    assert stopped.stderr.startswith("heed: line 301 '' holds no token;")
    assert len(stopped.stdout.splitlines()) == 300
    partial = heed("decode", "--partial", stdin=lines)
    assert partial.exit_code == 1
    assert partial.stderr.startswith("heed: line 301 '' holds no token;")
    assert partial.stdout.splitlines()[300:] == ["", "HH IY1 D"]


def test_score_reads_pairs(heed, post):
    _, answered = post("/v1/score", source=["ax", "heed"], target=["AE1 K S", "HH IY1 D"])
    found = heed("score", stdin="ax\tAE1 K S\nheed\tHH IY1 D\n").stdout.splitlines()
    sums = [float(line.split("\t")[0]) for line in found]
    assert sums == pytest.approx([each["sum"] for each in answered["results"]], abs=1e-4)


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ("read\tEH1\nread\tIY1\n", "read\tIY1"),
        ("a\tAH0\nread\tEH1\n\nread\tEH1", "read\tEH1"),
    ],
)
def test_a_repeated_word_of_a_glossary_is_refused(heed, tmp_path, lines, wrong):
    (tmp_path / "glossary.tsv").write_text(lines)
    refused = heed("decode", "read", "--glossary", tmp_path / "glossary.tsv")
    assert refused.exit_code == 2
    said = f"repeats a word in the line {wrong!r}: give each word once"
    assert said in " ".join(refused.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "end"),
    [
        (["attention", "ax", "-o", "a.png"], ".json,"),
        (["attribution", "ax", "-o", "a.NPZ"], ".json,"),
        (["decode", "--output", "a.tsv"], ".jsonl,"),
    ],
)
def test_json_and_a_file_of_another_format_are_refused(heed, tmp_path, monkeypatch, arguments, end):
    monkeypatch.chdir(tmp_path)
    refused = heed(*arguments, "--json", stdin="ax\n")
    assert (refused.exit_code, [*tmp_path.iterdir()]) == (2, [])
    assert f"give an --output that ends in {end} or leave out --json" in refused.stderr
    *_, name = arguments
    written = heed(*arguments[:-1], Path(name).with_suffix(end[:-1]), "--json", stdin="ax\n")
    assert (written.exit_code, written.stdout) == (0, "")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("ax\tAE1 K S\tmore\n", "line 1 has 2 tabs: give lines TEXT<TAB>TARGET"),
        ("ax\tAE1 K S\nax\tAE1 K S\t\n", "line 2 has 2 tabs: give"),
        ("ax\tAE1\n\n", "line 2 has no tab: give"),
        ("", "standard input holds no line: give lines TEXT<TAB>TARGET"),
    ],
)
def test_score_refuses_lines_that_are_not_pairs(heed, lines, said):
    refused = heed("score", stdin=lines)
    assert (refused.exit_code, refused.stdout) == (1 if not lines else 2, "")
    assert said in refused.stderr


@pytest.mark.parametrize("place", ["input", "stdin"])
def test_json_of_no_line_is_refused(heed, tmp_path, place):
    (tmp_path / "none.txt").touch()
    given = ["--input", tmp_path / "none.txt"] if place == "input" else []
    assert heed("decode", *given).output == ""
    refused = heed("decode", *given, "--json")
    name = given[-1] if given else "standard input"
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr == f"heed: {name} holds no line: give one, or leave out --json\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
@pytest.mark.parametrize("arguments", [["score", "heed", "HH"], ["decode", "ax", "--json"]])
def test_a_full_disk_is_named(arguments):
    with open("/dev/full", "w") as full:
        done = run_python(
            "-m", "service.command", *arguments, capture_output=False, stdout=full, stderr=PIPE
        )
    assert (done.returncode, done.stderr) == (1, "heed: [Errno 28] No space left on device\n")


@pytest.mark.parametrize(
    ("arguments", "lacking"),
    [
        (["attention", "heed"], "2192"),
        (["attribution", "heed"], "2192"),
        (["decode", "--help"], "2026"),
    ],
)
@pytest.mark.parametrize(
    ("encoding", "name"), [("latin-1", "iso8859-1"), ("koi8-r:strict", "koi8-r")]
)
def test_an_encoding_that_lacks_a_character_is_named(arguments, lacking, encoding, name):
    variables = {**os.environ, "PYTHONIOENCODING": encoding}
    done = run_python("-m", "service.command", *arguments, env=variables)
    assert (done.returncode, done.stdout) == (1, "")
    said = rf"heed: standard output is {name}, which lacks '\\u{lacking}': set "
    assert re.fullmatch(said + "PYTHONIOENCODING=utf-8\n", done.stderr), done.stderr


def test_a_heatmap_shows_the_largest_weights(heed):
    _, _, title, columns, *rows = heed("attention", "heed", "HH IY1 D").stdout.splitlines()
    assert title == "cross attention, mean of 3 layers, mean of 4 heads"
    assert columns == "      h e e d"
    assert [row.split()[0] for row in rows] == ["HH", "IY1", "D", "<eos>"]
    darkest = [max(range(6, len(row)), key=lambda i: " ░▒▓█".index(row[i])) for row in rows[:3]]
    assert [columns[place] for place in darkest] == ["h", "e", "d"]


def test_words_are_listed_with_those_that_they_are_from(heed):
    shown = heed("attention", "heed", "HH IY1 D", "--alignment", "model").stdout.splitlines()
    assert shown[-4:] == ["", "HH ← heed", "IY1 ← heed", "D ← heed"]
    assert "←" not in heed("attention", "heed", "HH IY1 D", "--alignment", "argmax").stdout


def test_heatmaps_of_selected_layers_and_heads(heed):
    shown = heed("attention", "ax", "--layers=-1", "--heads=0,2", "--kinds=cross,encoder").stdout
    titles = [line for line in shown.splitlines() if "attention, " in line]
    assert titles == [
        f"{kind} attention, layer {layer}, head {head}"
        for kind, layer in (("cross", 2), ("encoder", 3))
        for head in (0, 2)
    ]


@pytest.mark.parametrize(
    ("suffix", "begins"),
    [
        (".json", b'{"model":"g2p-en"'),
        (".npz", b"PK"),
        (".safetensors", b""),
        (".svg", b"<svg"),
        (".png", b"\x89PNG"),
        (".PNG", b"\x89PNG"),
        (".html", b"<!doctype html>"),
    ],
)
def test_a_suffix_names_the_format(heed, tmp_path, suffix, begins):
    file = tmp_path / f"ax{suffix}"
    done = heed("attention", "ax", "-o", file)
    assert (done.exit_code, done.output) == (0, "")
    assert file.read_bytes().startswith(begins)
    assert file.stat().st_size > 500


def test_variables_of_the_service_choose_the_model(heed, tiny, monkeypatch):
    monkeypatch.setenv("HEED_BUNDLES", str(tiny))
    document = json.loads(heed("decode", "red", "--json").stdout)
    assert document["model"] == "tiny"
    assert document == json.loads(heed("decode", "red", "--json", "--bundle", tiny).stdout)
    monkeypatch.setenv("HEED_BUNDLES", f"{tiny},{tiny}")
    assert "choose one of them with --bundle" in heed("decode", "red").stderr


@pytest.mark.parametrize("command", ["attention", "score"])
def test_what_the_settings_switch_off_is_an_error_in_one_line(heed, monkeypatch, command):
    monkeypatch.setenv(f"HEED_{command.upper()}", "false")
    refused = heed(command, "heed", "D")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("heed: ")
    assert refused.stderr.count("\n") == 1
    assert f"HEED_{command.upper()}" in refused.stderr


def test_the_key_for_services_does_not_stop_a_local_engine(heed, monkeypatch):
    monkeypatch.setenv("HEED_API_KEY", "a key")
    assert heed("decode", "heed").output == "HH IY1 D\n"


def test_answers_need_neither_fastapi_nor_torch():
    code = """
import contextlib, sys
from service.command.__main__ import main
for arguments in (["decode", "heed"], ["score", "heed", "D"], ["attention", "heed", "D"]):
    with contextlib.suppress(SystemExit):
        main(arguments)
unused = {"torch", "model", "fastapi", "service.app", "uvicorn", "httpx2", "huggingface_hub"}
assert not unused & {*sys.modules}, unused & {*sys.modules}
"""
    done = run_python("-c", code)
    assert done.stdout.startswith("HH IY1 D\n-")
    assert (done.stdout.splitlines()[2], done.stderr) == ("heed → D", "")


def test_help_opens_no_engine():
    code = """
import contextlib, sys
from service.command.__main__ import main
for command in ("decode", "attention", "score"):
    with contextlib.suppress(SystemExit):
        main([command, "--help"])
assert not {"onnxruntime", "fastapi", "service.engine"} & {*sys.modules}
"""
    done = run_python("-c", code)
    assert (done.stdout.count("Usage: "), done.stderr) == (3, "")


def test_every_setting_is_a_flag_of_serve(heed):
    shown = heed("serve", "--help").stdout
    assert all(f"--{name.replace('_', '-')}" in shown for name in Settings.model_fields)


def test_a_command_of_the_model_names_the_extra_that_it_needs():
    extras = {"convert": "convert", "train": "model", "export": "model"}
    code = f"""
import sys
sys.modules["torch"] = None  # as if it were not installed
from service.command.__main__ import main
for command in {[*extras]}:
    try:
        main([command, "--help"])
    except SystemExit as end:
        print(end.code)
"""
    done = run_python("-c", code)
    assert done.stdout.split() == ["2"] * 3
    for said, extra in zip(done.stderr.splitlines(), extras.values(), strict=True):
        assert said.startswith("heed: torch is not installed: ")
        assert said.endswith(f"pip install 'heed-server[{extra}]'")
        assert f"pipx install --force '.[{extra}]'" in said


@pytest.mark.long
@pytest.mark.parametrize("command", ["convert", "train", "evaluate", "export"])
def test_commands_of_the_model_explain_themselves(command):
    done = run_python("-m", "service.command", command, "--help", check=True)
    assert f"Usage: heed {command} [OPTIONS]" in done.stdout


def test_the_darkest_norm_is_the_largest(heed):
    """Norms may be far above 1: drawn as weights, all of them would be dark."""
    chosen = ["attention", "knight", "--reduce-heads", "mean", "--layers=-1", "--measure", "norm"]
    _, _, title, _, *rows = heed(*chosen).stdout.splitlines()
    assert title == "cross attention norms, layer 2, mean of 4 heads"
    drawn = [[cell == "█" for cell in row[6:].ljust(12)[::2]] for row in rows]
    (result,) = json.loads(heed(*chosen, "--json").stdout)["results"]
    (norms,) = np.array(result["attention"][0]["data"])
    np.testing.assert_array_equal(drawn, norms >= 0.8 * norms.max())


def test_norms_that_are_all_zero_are_drawn(heed):
    done = heed("attention", "knight", "--measure", "norm", "--decimals", "0", "--rows=0,1")
    assert done.exit_code == 0, done.output
