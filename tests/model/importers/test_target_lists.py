"""Tokens of target languages: which ones are listed, which options are refused, what is proved."""

import unicodedata
from dataclasses import replace
from pathlib import Path
from string import ascii_letters

import numpy as np
import pytest

from model.export.files.manifest import LARGEST, MIB, TARGET_LISTS, Precision
from model.importers.checkpoint import Checkpoint
from model.importers.convert import read_model
from model.importers.target_lists import (
    check_size,
    check_targets,
    list_tokens,
    prove_list,
    read_targets,
    scripts_of,
)
from model.network.config import InputError
from model.usage import Shortlists
from service.runtime import reference
from tests.conftest import opened
from tests.model.importers.checkpoints import write_m2m100, write_nllb
from tests.model.importers.conftest import read
from tests.model.importers.served import post, refusal, run
from tests.tracing import only

CODES = ("eng_Latn", "fra_Latn", "rus_Cyrl")
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
TEXTS = "the weather is lovely\n\nhow do you do ?\tnot this\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    write_nllb(folder := tmp_path_factory.mktemp("nllb"), languages=CODES)
    return folder


@pytest.fixture(scope="module")
def model(folder):
    _, vocabularies, usage = read(folder)
    return vocabularies.target, usage


@pytest.fixture(scope="module")
def config(folder):
    return read_model(Checkpoint(folder)).config


def listed(model, config, code, file=None):
    side, usage = model
    found = list_tokens(side, config, usage, {code: file}, code)
    return {side.tokenizer.id_to_token(i): i for i in found}


def letters(piece):
    """Return the scripts that the names of a piece's letters begin with."""
    names = (unicodedata.name(each, "") for each in piece if each.isalpha())
    return {name.split()[0].split("-")[0] for name in names}


def ordinary(model):
    side, usage = model
    special = {*usage.target_languages, "<s>", "</s>", "<pad>", "<unk>", "<mask>"}
    names = side.tokenizer.get_vocab()
    return [name for name in names if name.strip() not in special]


@pytest.mark.parametrize(("code", "script"), [("fra_Latn", "LATIN"), ("rus_Cyrl", "CYRILLIC")])
def test_a_script_lists_the_pieces_without_other_letters(model, config, code, script):
    found = listed(model, config, code)
    names = ordinary(model)
    own = {name for name in names if letters(name) == {script}}
    shared = {script, "MODIFIER", "FEMININE", "MASCULINE"}
    spelling = {name for name in names if name.strip(SPACE) in {*ascii_letters}}
    mixed = {name for name in names if letters(name) - shared} - spelling
    bare = {name for name in names if not any(unicodedata.category(c)[0] in "LM" for c in name)}
    assert min(map(len, (own, mixed, bare, spelling)))
    assert own | bare | spelling <= found.keys()
    assert not mixed & {name for name in found if letters(name)}


def test_every_list_ends_targets_and_has_its_own_language_alone(model, config):
    found = listed(model, config, "fra_Latn")
    assert {name.strip() for name in found} & {*CODES} == {"fra_Latn"}
    assert config.eos_id in found.values()
    assert {"<unk>", "</s>"} <= {name.strip() for name in found}


def test_a_file_lists_the_tokens_of_its_texts_and_spells_their_letters(model, config, tmp_path):
    (file := tmp_path / "texts.txt").write_text(TEXTS)
    found = listed(model, config, "fra_Latn", file)
    tokenizer = model[0].tokenizer
    for line in ("the weather is lovely", "how do you do ?", "dew", "hot"):
        ids = tokenizer.encode(line, add_special_tokens=False).ids
        assert line in ("dew", "hot") or {*ids} <= {*found.values()}
    vocabulary = tokenizer.get_vocab()
    for letter in "thweairsloyud":
        assert not vocabulary.keys() & {letter} or letter in found
    assert not {"z", "k", "я"} & found.keys()


def test_a_converted_model_is_served_with_its_lists(folder, tmp_path):
    """From the command to answers: by a script, by a file, and of a language without a list."""
    (file := tmp_path / "texts.txt").write_text(TEXTS)
    with only("encoder", "step"):
        given = "--targets", f"rus_Cyrl, fra_Latn={file}"
        done = run(folder, bundle := tmp_path / "lists", "--precision", "fp32", *given)
    assert done.exit_code == 0, done.output
    for code in ("rus_Cyrl", "fra_Latn"):
        (proof,) = (line for line in done.stdout.splitlines() if f"| tokens of {code} |" in line)
        assert proof.endswith(" listed | holds |")
        assert proof.strip("| ") in (bundle / "MODEL_CARD.md").read_text()
    with np.load(bundle / "target_lists.npz") as arrays:
        lists = {code: {*tokens.tolist()} for code, tokens in arrays.items()}
    body = {"source": ["hello", "how do you do ?"], "source_language": "eng_Latn"}
    free = {"temperature": 3.0, "num_hypotheses": 8, "seed": 1, "max_new_tokens": 20}
    with opened(bundle, precision="fp32") as client:
        (model,) = client.get("/v1/models").json()["models"]
        sizes = {code: len(tokens) for code, tokens in lists.items()}
        assert model["languages"]["target_lists"] == sizes
        written = {}
        for code in CODES:
            results = post(client, "/v1/decode", **body, target_language=code, **free)
            hypotheses = [each for result in results for each in result["hypotheses"]]
            written[code] = {token for each in hypotheses for token in each["token_ids"]}
    assert all(written[code] <= tokens for code, tokens in lists.items())
    assert not any(written["eng_Latn"] <= tokens for tokens in lists.values())


def test_scripts_of_codes():
    assert scripts_of("fra_Latn") == ["Latn"]
    assert scripts_of("zho_Hans") == ["Hani"]
    assert scripts_of("jpn_Jpan") == ["Hani", "Hira", "Kana"]
    assert not scripts_of("fr")
    assert not scripts_of("fr_XX")


def test_targets_name_languages_and_files():
    assert read_targets("") == {}
    assert read_targets("fra_Latn, deu_Latn=a=b.txt") == {
        "fra_Latn": None,
        "deu_Latn": Path("a=b.txt"),
    }


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("spa_Latn", "'spa_Latn', which is not a target language that this model has a token for"),
        ("fra_Latn,", "'', which is not a target language"),
        ("fra_Latn=absent.txt", "absent.txt of --targets is not a file"),
        ("fra_Xxxx", "'fra_Xxxx', which is not a target language"),
        ("fra_Latn,rus_Cyrl,fra_Latn=a.txt", "--targets has 'fra_Latn' twice: give it once"),
        ("fra_Latn=", "'fra_Latn=', which names no file: give fra_Latn=FILE"),
    ],
)
def test_bad_targets_are_refused(folder, tmp_path, given, named):
    assert named in refusal(folder, tmp_path / "bundle", "--targets", given)


def test_a_code_without_a_script_needs_a_file(tmp_path):
    write_m2m100(tmp_path / "m2m100")
    sentence = refusal(tmp_path / "m2m100", tmp_path / "bundle", "--targets", "fr")
    assert "give fr=FILE" in sentence


def test_an_unknown_script_needs_a_file(model):
    usage = replace(model[1], target_languages={"abc_Abcd": [5]})
    with pytest.raises(InputError, match="give abc_Abcd=FILE"):
        check_targets({"abc_Abcd": None}, usage, Precision.auto)


def test_a_model_without_languages_has_no_lists(model):
    usage = replace(model[1], target_languages={})
    with pytest.raises(InputError, match="leave --targets out"):
        check_targets({"fra_Latn": None}, usage, Precision.auto)


def test_fp16_alone_has_no_lists(model):
    with pytest.raises(InputError, match="not for fp16, which scores all tokens"):
        check_targets({"fra_Latn": None}, model[1], Precision.fp16)
    check_targets({"fra_Latn": None}, model[1], Precision.all)
    check_targets({}, model[1], Precision.fp16)


@pytest.mark.parametrize(
    ("content", "named"), [(b"\n", "holds no text"), (b"\xff", "is not UTF-8")]
)
def test_files_without_texts_are_refused_before_the_network_is_read(
    model, tmp_path, content, named
):
    file = tmp_path / "texts.txt"
    file.write_bytes(content)
    with pytest.raises(InputError, match=named):
        check_targets({"fra_Latn": file}, model[1], Precision.auto)


def test_more_tokens_than_the_service_reads_are_refused(tmp_path, monkeypatch):
    """`read_arrays` bounds the unpacked arrays, which say more than the size of the file."""
    monkeypatch.setitem(LARGEST, TARGET_LISTS, 2 * MIB)
    monkeypatch.setattr(reference, "LARGEST_REFERENCE", 2 * MIB)
    most = MIB // 4
    lists = {f"l{i}": np.arange(most // 128) for i in range(128)}
    check_size(lists)
    arrays = {code: each.astype(np.int32) for code, each in lists.items()}
    np.savez_compressed(tmp_path / "lists.npz", **arrays)
    assert len(reference.read_arrays(tmp_path / "lists.npz")) == len(lists)
    with pytest.raises(InputError, match=f"have {most + 1} tokens together; the limit is {most}"):
        check_size(lists | {"more": np.arange(1)})


def test_a_model_with_shortlists_has_no_lists(model):
    shortlists = Shortlists(*(np.zeros(1, np.int64) for _ in range(3)))
    with pytest.raises(InputError, match="not for a model with shortlists"):
        check_targets({"fra_Latn": None}, replace(model[1], shortlists=shortlists), Precision.auto)
    check_targets({}, replace(model[1], shortlists=shortlists), Precision.auto)


def test_a_proof_counts_texts_with_tokens_that_are_not_listed(model):
    pairs = [([9], [2, 5, 10, 11]), ([9], [2, 5, 10, 12, 12]), ([9], [2, 5])]
    side = model[0]
    proof = prove_list("fra_Latn", {2, 5, 10, 11}, pairs, 2, side)
    assert proof.holds is False
    assert "1 of 3 texts change; 3 of 5 of their tokens are listed" in proof.result
    assert side.tokenizer.id_to_token(12) in proof.result
    assert prove_list("fra_Latn", {10, 11, 12}, pairs, 2, side).holds
