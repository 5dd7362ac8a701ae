"""heed decode --input --output: formats, order, bad lines, and going on after a kill."""

import fcntl
import gzip
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
WORDS = ["heed", "a", "photograph", "knight", "incomprehensibility", "ax"]


@pytest.fixture(scope="module")
def targets(post):
    """The right target of each word."""
    _, answered = post("/v1/decode", source=WORDS)
    results = answered["results"]
    return {word: each["hypotheses"][0]["text"] for word, each in zip(WORDS, results, strict=True)}


@pytest.fixture
def words():
    """More words than are decoded at once, of all lengths in any order."""
    return random.Random(1).choices(WORDS, k=300)


@pytest.mark.parametrize(
    ("source", "output"),
    [("w.txt", "w.tsv"), ("w.tsv.gz", "w.txt"), ("w.jsonl", "w.jsonl.gz")],
)
def test_every_format_keeps_the_order(heed, tmp_path, words, targets, source, output):
    lines = {
        "w.txt": "".join(f"{word}\n" for word in words),
        "w.tsv.gz": "".join(f"{word}\tanother column\n" for word in words),
        "w.jsonl": "".join(
            json.dumps(word if i % 2 else {"id": i, "source": word}) + "\n"
            for i, word in enumerate(words)
        ),
    }[source]
    packed = gzip.compress(lines.encode()) if source.endswith(".gz") else lines.encode()
    (tmp_path / source).write_bytes(packed)
    done = heed("decode", "--input", tmp_path / source, "--output", tmp_path / output)
    assert done.exit_code == 0, done.output
    assert f"{output}: 300 lines, " in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {source, output}
    content = (tmp_path / output).read_bytes()
    written = (gzip.decompress(content) if output.endswith(".gz") else content).decode()
    assert [read(output, line) for line in written.splitlines()] == [targets[w] for w in words]
    if output == "w.tsv":
        assert [line.split("\t")[0] for line in written.splitlines()] == words


PAGES = ["--input", "p.html", "--output", "t.html", "--markup", "html"]
PAGE = "<!DOCTYPE html>\r\n<p>heed</p>\n<p>pho<b>to</b></p>\n<code>a\tb</code>\r\n\n"


@pytest.mark.parametrize("packed", [False, True])
def test_a_document_is_decoded_as_one_text(heed, post, tmp_path, packed):
    end = ".html.gz" if packed else ".html"
    source, output = tmp_path / f"page{end}", tmp_path / f"target{end}"
    source.write_bytes(gzip.compress(PAGE.encode()) if packed else PAGE.encode())
    markup = {"markup": "html", "split": "sentences"}
    _, answered = post("/v1/decode", source=PAGE, **markup)
    expected = answered["results"][0]["hypotheses"][0]["text"]
    asked = ["decode", "--input", source, "--markup", "html", "--split", "sentences"]
    assert heed(*asked).stdout == f"{expected}\n"
    done = heed(*asked, "--output", output)
    assert done.exit_code == 0, done.output
    written = output.read_bytes()
    assert (gzip.decompress(written) if packed else written).decode() == expected
    assert {path.name for path in tmp_path.iterdir()} == {source.name, output.name}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--input", "p.html"], "p.html is a document: give --markup html or xml as well"),
        (["--input", "w.txt", "--output", "t.xml"], "t.xml is a document: give --markup"),
        (["--input", "w.txt", "--output", "t.xml", "--markup", "xml"], "one of these as --input"),
        (["--input", "p.html", "--output", "t.tsv", "--markup", "xml"], "p.html is one document"),
        (["--input", "p.html", "--output", "p.html", "--markup", "xml"], "are the same file"),
        (["--input", "w.txt", "--output", "t.tsv", "--no-source-final"], "ends in .jsonl"),
        ([*PAGES, "--json"], "nothing else: leave out --json"),
        ([*PAGES, "--words", "--top-log-probs=2"], "leave out --words and --top-log-probs"),
        ([*PAGES, "--num-hypotheses=2"], "has one hypothesis and nothing else: leave out --num-"),
        ([*PAGES, "--no-source-final"], "leave out --no-source-final"),
        (["--input", "p.html", "--output", "t.tsv", "--markup=xml", "--json"], "ends in .html or"),
    ],
)
def test_documents_are_not_read_as_lines(heed, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    for name in ("p.html", "w.txt"):
        (tmp_path / name).write_text("<p>ax</p>\n")
    done = heed("decode", *arguments)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())
    assert (tmp_path / "p.html").read_text() == "<p>ax</p>\n"


@pytest.mark.parametrize(("link", "end"), [("lnk/t.tsv", ".tsv"), ("lnk/t.gz", "")])
@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_written_through(heed, tmp_path, targets, link, end, there):
    real, link = tmp_path / "real" / "data", tmp_path / link
    for folder in (real.parent, link.parent):
        folder.mkdir()
    if there:
        real.write_text("old")
    link.symlink_to(Path("..", "real", "data"))
    done = heed("decode", "--output", link, stdin="ax\n")
    assert done.exit_code == 0, done.output
    assert (link.is_symlink(), real.is_symlink()) == (True, False)
    expected = f"ax\t{targets['ax']}\n" if end else f"{targets['ax']}\n"
    content = real.read_bytes()
    assert (content if end else gzip.decompress(content)).decode() == expected
    assert [*real.parent.iterdir()] == [real]


@pytest.mark.parametrize("output", ["-", "pipe", "to_pipe", "to_stdout", "loop"])
@pytest.mark.parametrize("command", [["decode"], ["attention", "ax"]])
def test_only_a_file_is_an_output(heed, tmp_path, monkeypatch, output, command):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    # no test writes to /dev/stdout itself: root could replace it
    links = {"to_pipe": "pipe", "to_stdout": "/proc/self/fd/1", "loop": "loop"}
    for name, to in links.items():
        Path(name).symlink_to(to)
    refused = heed(*command, "--output", output, stdin="ax\n")
    assert refused.exit_code == 2
    said = " ".join(refused.stderr.split())
    if output == "to_stdout":
        assert "standard output goes to to_stdout already: leave out --output, or" in said
    else:
        assert f"{output} is not a file: without --output, answers go to standard output" in said
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", *links}
    assert all(Path(name).is_symlink() for name in links)


def test_a_link_into_no_folder_is_refused(heed, tmp_path):
    (tmp_path / "t.tsv").symlink_to(tmp_path / "nowhere" / "t.tsv")
    refused = heed("decode", "--output", tmp_path / "t.tsv", stdin="ax\n")
    assert refused.exit_code == 2
    assert "nowhere does not exist" in " ".join(refused.stderr.split()).replace("│ ", "")


def test_an_output_is_written_by_one_command_at_a_time(heed, tmp_path, targets):
    (tmp_path / "link.txt").symlink_to("w.txt")
    command, lines = ["decode", "--output", tmp_path / "w.txt"], "ax\nheed\n7\n"
    assert heed(*command, stdin=lines).exit_code == 1
    (part,) = tmp_path.glob("*.part")
    before = part.read_bytes() + b"half"
    part.write_bytes(before)
    with part.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        for output in (tmp_path / "w.txt", tmp_path / "link.txt"):
            refused = heed("decode", "--output", output, "--partial", stdin=lines)
            assert (refused.exit_code, part.read_bytes()) == (1, before)
            assert refused.stderr == (
                f"heed: another heed writes {output}: wait for it, or choose another --output\n"
            )
    assert "going on after line 2" in heed(*command, "--partial", stdin=lines).stderr
    assert (tmp_path / "w.txt").read_text() == f"{targets['ax']}\n{targets['heed']}\n\n"


def test_a_document_is_written_by_one_command_at_a_time(heed, tmp_path):
    source, output, part = (tmp_path / f"{name}" for name in ("s.xml", "t.xml", "t.xml.part"))
    source.write_text("<p>ax</p>")
    part.write_text("of the other")
    asked = ["decode", "--markup", "xml", "--input", source, "--output", output]
    with part.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert f"another heed writes {output}: wait for it" in heed(*asked).stderr
        assert part.read_text() == "of the other"
    assert heed(*asked).exit_code == 0
    assert output.read_text() == "<p>AE1 K S</p>"


BOM = "\ufeff"


@pytest.mark.parametrize(
    ("name", "line"), [("w.txt", "ax"), ("w.tsv", "ax\tb"), ("w.jsonl", '"ax"'), ("w.gz", "ax")]
)
def test_a_byte_order_mark_is_not_a_part_of_the_first_line(heed, tmp_path, targets, name, line):
    content = f"{BOM}{line}\n{line}".encode()
    file = tmp_path / name
    file.write_bytes(gzip.compress(content) if name == "w.gz" else content)
    expected = f"{targets['ax']}\n" * 2
    assert heed("decode", "--input", file).output == expected
    if name == "w.txt":
        assert heed("decode", stdin=content.decode()).output == expected
        assert len(heed("score", stdin=f"{BOM}ax\tAE1 K S\n").stdout.splitlines()) == 1


def test_a_byte_order_mark_is_not_a_part_of_a_document(heed, tmp_path):
    (tmp_path / "p.xml").write_text(f"{BOM}<p>ax</p>", encoding="utf-8")
    asked = ["decode", "--markup", "xml", "--input", tmp_path / "p.xml"]
    heed(*asked, "--output", tmp_path / "t.xml")
    assert (tmp_path / "t.xml").read_bytes() == b"<p>AE1 K S</p>"


@pytest.mark.parametrize("arguments", [["decode"], ["decode", "--output", "w.txt"], ["score"]])
def test_closed_standard_input_is_named(tmp_path, arguments):
    command = [sys.executable, "-m", "service.command", *arguments]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, [*tmp_path.iterdir()]) == (1, [])
    assert done.stderr == (
        "heed: standard input is closed: give texts, or redirect it from a file by <\n"
    )


def read(output, line):
    if "jsonl" in output:
        return json.loads(line)["hypotheses"][0]["text"]
    return line.split("\t")[-1]


def test_input_without_output_is_printed(heed, tmp_path, words, targets):
    (tmp_path / "w.txt").write_text("\n".join(words))
    printed = heed("decode", "--input", tmp_path / "w.txt").stdout
    assert printed.splitlines() == [targets[word] for word in words]


def test_output_without_input_takes_lines_of_standard_input(heed, tmp_path, targets):
    heed("decode", "--output", tmp_path / "w.tsv", stdin="heed\r\nax\n")
    assert (tmp_path / "w.tsv").read_text() == f"heed\t{targets['heed']}\nax\t{targets['ax']}\n"


def test_a_bad_line_is_named_and_skipped_by_choice(heed, tmp_path, words, targets):
    (tmp_path / "w.txt").write_text("\n".join([*words, "7", "ax"]))
    files = ["--input", tmp_path / "w.txt", "--output", tmp_path / "w.tsv"]
    stopped = heed("decode", *files)
    assert stopped.exit_code == 1
    assert "heed: line 301 has '7' at offset 0, which the vocabulary lacks" in stopped.stderr
    assert not (tmp_path / "w.tsv").exists()
    skipped = heed("decode", *files, "--partial")
    assert skipped.exit_code == 1
    assert "heed: going on after line 300 of " in skipped.stderr
    assert "heed: line 301 has '7' at offset 0" in skipped.stderr
    lines = (tmp_path / "w.tsv").read_text().splitlines()
    assert lines[300:] == ["7\t", f"ax\t{targets['ax']}"]


@pytest.mark.parametrize("output", ["w.tsv", "w.jsonl"])
def test_bytes_that_are_not_text_are_a_bad_line(heed, tmp_path, output):
    (tmp_path / "w.txt").write_bytes(b"ax\n\xff\nax\n")
    files = ["--input", tmp_path / "w.txt", "--output", tmp_path / output]
    done = heed("decode", *files, "--partial")
    assert done.exit_code == 1
    assert done.stderr.startswith("heed: line 2 has a byte that is not UTF-8 at offset 0")
    first, bad, last = (tmp_path / output).read_bytes().splitlines()
    assert first == last
    assert bad.startswith(b"\xff\t" if output == "w.tsv" else b'{"source":"?","error":"line 2 ')


@pytest.mark.parametrize("output", ["w.tsv", "out.jsonl"])
def test_half_a_surrogate_pair_in_json_is_a_bad_line(heed, tmp_path, output):
    (tmp_path / "w.jsonl").write_text('"\\ud800"\n"ax"\n')
    done = heed(
        "decode", "--input", tmp_path / "w.jsonl", "--output", tmp_path / output, "--partial"
    )
    assert (done.exit_code, done.output.count("Traceback")) == (1, 0)
    bad, _ = (tmp_path / output).read_bytes().splitlines()
    assert bad.startswith(b"?\t" if output == "w.tsv" else b'{"source":"?","error":"line 1 ')


@pytest.mark.parametrize("output", [[], ["--output", "t.jsonl"]])
def test_half_a_character_in_an_object_is_a_bad_line(heed, tmp_path, monkeypatch, output):
    """Both halves together are one character."""
    monkeypatch.chdir(tmp_path)
    half = "a byte that is not UTF-8 at offset"
    lines = {
        b'"ax"': "",
        rb'{"source": "ax\udcff"}': f"{half} 2",
        b'{"source": "\xff", "id": 1}': f"{half} 0",
        rb'"\ud83d\ude00"': "'\U0001f600' at offset 0",
    }
    Path("w.jsonl").write_bytes(b"\n".join(lines))
    done = heed("decode", "--input", "w.jsonl", *output, "--partial")
    assert done.exit_code == 1
    for number, said in enumerate(lines.values(), 1):
        assert (f"heed: line {number} has {said}" in done.stderr) == bool(said)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{}", "w.jsonl:2 is not a JSON text, nor an object"),
        ("heed", "w.jsonl:2 is not a JSON"),
        pytest.param("[" * 100_000, "w.jsonl:2 is not a JSON", id="nested"),
    ],
)
def test_json_without_a_text_is_refused_after_the_lines_before(heed, tmp_path, targets, line, said):
    (tmp_path / "w.jsonl").write_text(f'"ax"\n{line}\n')
    refused = heed("decode", "--input", tmp_path / "w.jsonl", "--output", tmp_path / "w.txt")
    assert refused.exit_code == 1
    assert said in refused.stderr
    (part,) = tmp_path.glob("w.txt.*.part")
    assert part.read_text() == f"{targets['ax']}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--output", "nowhere/w.txt"], "the folder nowhere does not exist"),
        (["--output", ""], ". is not a file"),
        (["--output", "w.CSV.gz"], "w.CSV.gz is of another format: give .tsv, .jsonl, or .txt"),
        (["--input", ROOT / "package.json"], "does not exist"),
        (["ax", "--output", "w.tsv"], "give TEXTS or files, not both"),
        (["--output", "w.tsv", "--num-hypotheses", "2"], "an --output that ends in .jsonl"),
        (["--words"], "--words needs --json, or an --output that ends in .jsonl"),
        (["--output", "w.tsv", "--top-log-probs", "2"], "--top-log-probs needs --json, or an"),
        (["--input", "nothing.txt"], "'nothing.txt' does not exist"),
    ],
)
def test_arguments_that_contradict_each_other(heed, arguments, said):
    refused = heed("decode", *arguments)
    assert refused.exit_code == 2
    assert said in refused.output


@pytest.mark.parametrize("other", ["w.txt", "../{folder}/w.txt", "link", "hard_link"])
def test_the_input_is_not_replaced(heed, tmp_path, other):
    file = tmp_path / "w.txt"
    file.write_text("ax\n")
    (tmp_path / "link").symlink_to(file)
    (tmp_path / "hard_link").hardlink_to(file)
    output = tmp_path / other.format(folder=tmp_path.name)
    refused = heed("decode", "--input", file, "--output", output)
    assert refused.exit_code == 2
    assert f"--input {file} and --output {output} are the same file" in refused.output
    assert file.read_text() == "ax\n"


@pytest.mark.parametrize(
    "content", [b"ax\n", gzip.compress(b"ax\n" * 99, mtime=0)[:-9], b"\x1f\x8b\x08" * 9]
)
def test_damaged_gzip_is_named(heed, tmp_path, content):
    file = tmp_path / "w.gz"
    file.write_bytes(content)
    for arguments in (["--output", tmp_path / "w.tsv"], []):
        refused = heed("decode", "--input", file, *arguments)
        assert refused.exit_code == 1
        assert refused.stderr.startswith(f"heed: {file} is not a whole gzip file: ")


def test_a_file_that_the_system_refuses_is_named(heed, tmp_path):
    (tmp_path / "w.txt").write_text("ax\n")
    output = tmp_path / ("w" * 250)  # the file with the end .part has a longer name than may be
    refused = heed("decode", "--input", tmp_path / "w.txt", "--output", output)
    assert refused.exit_code == 1
    assert refused.stderr.startswith(f"heed: {output}.")
    assert refused.stderr.endswith(".part: File name too long\n")


def test_other_fields_of_an_object_are_kept(heed, tmp_path):
    others = {"id": 7, "note": "日本", "big": 10**30}
    lines = [{**others, "source": "ax", "error": "old"}, {"source": "ax"}, {"id": 8, "source": "7"}]
    (tmp_path / "w.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    output = tmp_path / "o.jsonl"
    heed("decode", "--input", tmp_path / "w.jsonl", "--output", output, "--partial")
    first, plain, failed = map(json.loads, output.read_text().splitlines())
    assert first == others | plain
    assert failed.keys() == {"id", "source", "error"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], ""),
        (["--output", "w.txt"], "stopped: the same command goes on after the lines that are done"),
    ],
)
def test_a_terminal_is_waited_for_until_the_first_interrupt(tmp_path, arguments, said):
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "service.command", "decode", *arguments]
    with (
        os.fdopen(theirs) as terminal,
        subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        waits = process.stderr.readline()
        assert waits == "heed: reading lines from the terminal; Ctrl-D ends them\n"
        if not arguments:
            os.write(ours, b"ax\n")
            assert process.stdout.readline() == "AE1 K S\n"  # then it waits for another line
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == (130 if arguments else 1)
    assert said in errors
    assert "Traceback" not in errors


@pytest.mark.long
def test_a_killed_command_goes_on_where_it_was(tmp_path, words, targets):
    words *= 20
    (tmp_path / "w.txt").write_text("\n".join(words))
    files = ["--input", tmp_path / "w.txt", "--output", tmp_path / "w.tsv"]
    command = [sys.executable, "-m", "service.command", "decode", *files]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: any(path.stat().st_size for path in tmp_path.glob("*.part")))
        process.send_signal(signal.SIGKILL)
    (part,) = tmp_path.glob("*.part")
    whole = part.read_bytes()
    assert 0 < whole.count(b"\n") < len(words), "it was killed too late"
    part.write_bytes(whole + b"hee")  # as if it was killed while it wrote a line
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    count = whole.count(b"\n")
    assert f"going on after line {count} of" in done.stderr
    lines = (tmp_path / "w.tsv").read_text().splitlines()
    assert lines == [f"{word}\t{targets[word]}" for word in words]
    assert not [*tmp_path.glob("*.part")]


def test_standard_input_that_has_changed_is_decoded_from_its_beginning(heed, tmp_path, targets):
    command = ["decode", "--output", tmp_path / "w.txt"]
    assert heed(*command, stdin="ax\n" * 300 + "7\n").exit_code == 1
    again = heed(*command, "--partial", stdin="ax\n" * 300 + "7\n")
    assert "going on after line 300" in again.stderr
    assert (tmp_path / "w.txt").read_text() == f"{targets['ax']}\n" * 300 + "\n"
    assert heed(*command, stdin="ax\n" * 300 + "7\n").exit_code == 1
    other = heed(*command, stdin="heed\n" + "ax\n" * 299)
    assert "going on" not in other.stderr
    assert (tmp_path / "w.txt").read_text().startswith(f"{targets['heed']}\n{targets['ax']}\n")


def test_a_file_that_has_changed_is_decoded_from_its_beginning(heed, tmp_path, targets):
    for word in ("ax", "heed"):
        (tmp_path / "w.txt").write_text(f"{word}\n7\n")
        files = ["--input", tmp_path / "w.txt", "--output", tmp_path / "w.txt.out"]
        assert heed("decode", *files).exit_code == 1
        (tmp_path / "w.txt").write_text(f"{word}\n")
        assert "going on" not in heed("decode", *files).stderr
        assert (tmp_path / "w.txt.out").read_text() == f"{targets[word]}\n"
