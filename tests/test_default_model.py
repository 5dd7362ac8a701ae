"""The default model: its card is right, every word gets a plausible output, `make` trains one."""

import json
import os
import re
import string
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

REPOSITORY = Path(__file__).parent.parent
WORDS = (REPOSITORY / "tests" / "unseen_words.txt").read_text().split()
PARTS = WORDS[:139], WORDS[139:]  # names; others: a request takes 256 sources
CUT_SHORT = {  # words with known too short outputs, by beam size (docs/pronunciation.md)
    1: {"loughborougher"},
    4: {"loughborougher"},
}
REPEATED = re.compile(r"((?:\S+ ){1,6})\1\1")  # one to six phonemes, three times in a row


def test_the_shipped_bundle_gives_the_answers_of_its_card(g2p, post):
    card = (g2p / "MODEL_CARD.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| ([a-z']+) \| ([A-Z0-2 ]+) \|$", card, re.MULTILINE)
    words, pronunciations = zip(*table, strict=True)
    status, answer = post("/v1/decode", source=list(words))
    assert status == 200
    assert [result["hypotheses"][0]["text"] for result in answer["results"]] == [*pronunciations]


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.long
def test_make_trains_a_model_of_the_same_kind(g2p, tmp_path):
    vocabulary = Tokenizer.from_file(str(g2p / "target.tokenizer.json")).get_vocab()
    phonemes = [token for token in vocabulary if token[0] != "<"]
    words = [*WORDS, string.ascii_uppercase]
    lines = [f"{word}\t{phonemes[i % len(phonemes)]}\n" for i, word in enumerate(words)]
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text("".join(lines), encoding="utf-8")
    variables = [f"DATA={tmp_path}", f"RUNS={tmp_path}", f"BIN={Path(sys.executable).parent}"]
    command = ["make", "--old-file=.venv/dev", "g2p-en", *variables]
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    for _ in range(2):  # the second time nothing is left to train
        subprocess.run(command, cwd=REPOSITORY, env=environment, check=True)
    one, two, run = (tmp_path / name for name in ("one", "two", "g2p-en"))
    assert read_json(run / "config.json") == read_json(g2p / "bundle.json")["config"]
    assert [read_json(each / "config.json")["rotary"] for each in (one, two)] == [True, False]
    options = read_json(run / "training.json")
    assert (options["start"], options["teachers"]) == (str(one), [str(one), str(two)])
    assert len((run / "losses.tsv").read_text().splitlines()) == options["epochs"]


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("words", PARTS, ids=["names", "others"])
def test_every_word_gets_a_plausible_output(post, words, beam_size):
    """The output ends with eos and loops only where the word does.

    It has at least two phonemes per five letters (one per three if letters are doubled) and at
    most seven per letter: "W", spelt out, has seven.
    """
    status, answer = post("/v1/decode", source=words, beam_size=beam_size)
    assert status == 200
    for word, result in zip(words, answer["results"], strict=True):
        hypothesis = result["hypotheses"][0]
        phonemes = hypothesis["text"].split()
        shown = (word, hypothesis["text"])
        assert hypothesis["finish_reason"] == "eos", shown
        doubled, repeats = (
            re.search(pattern, word) for pattern in (r"(.{1,4})\1", r"(.{1,4})\1\1")
        )
        least = 1 if repeats else len(word) / 3 if doubled else 0.4 * len(word)
        assert (len(phonemes) < least) == (word in CUT_SHORT[beam_size]), shown
        assert 1 <= len(phonemes) <= 7 * len(word), shown
        assert repeats or not REPEATED.search(hypothesis["text"] + " "), shown


@pytest.mark.parametrize(
    ("word", "end"),
    [
        ("antidisestablishmentarianism", "IH2 Z AH0 M"),
        ("antiestablishmentarian", "EH1 R IY0 AH0 N"),
        ("counterrevolutionaries", "R IY0 Z"),
        ("electroencephalographically", "F IH0 K L IY0"),
        ("incomprehensibilities", "L IH0 T IY0 Z"),
    ],
)
def test_a_long_word_is_pronounced_to_its_end(post, word, end):
    _, answer = post("/v1/decode", source=word)
    assert answer["results"][0]["hypotheses"][0]["text"].endswith(end)
