"""An OPUS-MT of one pair of languages says which, and is served as a model of translation."""

import json

import httpx2
import pytest
import torch
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from libretranslatepy import LibreTranslateAPI
from safetensors.torch import save_file

from model.importers.checkpoint import Checkpoint
from model.importers.pair import find_pair
from model.importers.readme import find_licence, read_front_matter, task_of
from model.network.config import InputError
from tests.conftest import serving
from tests.model.importers.checkpoints import write_marian
from tests.model.importers.served import convert

CARD = "---\nlanguage:\n- en\n- fr\ntags:\n- translation\n\nlicense: apache-2.0\n---\n"
TOKENIZER = {"source_lang": "fr", "target_lang": "en"}
ENGLISH_GREEK = CARD.replace("fr", "el")
NORWEGIAN = CARD.replace("fr", "no")
LINES = "\n### opus-mt\n\n* source languages: {}\n* target languages: {}\n*  OPUS readme: [a](b)\n"
TATOEBA = "\n* source language(s): eng\n* target language(s): ell\n"
NAME = "Helsinki-NLP/opus-mt-{}"


def write(folder, readme="", tokenizer=None, name=""):
    """Write a checkpoint that has nothing but names of languages."""
    save_file({"a": torch.zeros(1)}, folder / "model.safetensors")
    config = {"model_type": "marian", "_name_or_path": name}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer or {}))
    if readme:
        (folder / "README.md").write_text(readme)
    return folder


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"readme": CARD, "tokenizer": TOKENIZER}, ("fr", "en")),
        ({"tokenizer": TOKENIZER}, ("fr", "en")),
        ({"readme": CARD + LINES.format("fr", "en")}, ("fr", "en")),
        ({"readme": CARD, "name": NAME.format("fr-en")}, ("fr", "en")),
        ({"name": "/tmp/opus-mt-tc-big-fr-en/checkpoint-500"}, ("fr", "en")),
        ({"name": NAME.format("en-pt_BR-finetuned-en-to-pt")}, ("en", "pt_BR")),
        ({"tokenizer": TOKENIZER, "name": NAME.format("en-fr")}, ("fr", "en")),  # the surest
        # spelled as the head of README.md spells it
        (
            {
                "readme": ENGLISH_GREEK + TATOEBA,
                "tokenizer": {"source_lang": "eng", "target_lang": "ell"},
                "name": NAME.format("en-el"),
            },
            ("en", "el"),
        ),
        ({"readme": NORWEGIAN, "name": NAME.format("en-no")}, ("en", "no")),  # YAML's false
        # not said, or by files that disagree
        ({"readme": CARD}, None),
        ({"readme": CARD, "name": NAME.format("en-de")}, None),
        ({"tokenizer": {"source_lang": "en", "target_lang": "en"}}, None),
        # several languages on a side, without tokens for them
        ({"tokenizer": {"source_lang": "ROMANCE", "target_lang": "en"}}, None),
        ({"tokenizer": {"source_lang": "zle", "target_lang": "en"}}, None),
        ({"name": NAME.format("de+fr-en")}, None),
        ({"readme": CARD.replace("fr", "fr\n- it"), "tokenizer": TOKENIZER}, None),
        ({"readme": LINES.format("fr,fr_BE,it", "en"), "name": NAME.format("roa-en")}, None),
    ],
)
def test_a_pair_is_what_the_surest_file_says(tmp_path, files, expected):
    assert find_pair(Checkpoint(write(tmp_path, **files))) == expected


@pytest.mark.parametrize(
    ("head", "task"),
    [
        ("tags:\n- marian\n- translation\n", "translation"),
        ("tags: summarization\n", "summarization"),
        ("tags:\n- text2text-generation\n- translation\n", "translation"),
        ("pipeline_tag: summarization\ntags:\n- translation\n", "summarization"),
        ("tags:\n- pytorch\n", ""),
        ("license: mit\n", ""),
    ],
)
def test_tags_name_the_task_where_the_pipeline_is_missing(tmp_path, head, task):
    (tmp_path / "README.md").write_text(f"---\n{head}---\n")
    assert task_of(read_front_matter(tmp_path)) == task


def test_a_folder_without_readme_needs_no_licence_unless_it_is_of_the_hub(tmp_path):
    assert find_licence(tmp_path, "") == ""
    snapshot = tmp_path / "models--owner--name" / "snapshots" / "a1"
    snapshot.mkdir(parents=True)
    with pytest.raises(InputError, match="has no README.md that names its license: give --lic"):
        find_licence(snapshot, "")
    assert find_licence(snapshot, "MIT") == "MIT"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair") / "checkpoint"
    folder.mkdir()
    write_marian(folder)
    (folder / "README.md").write_text(CARD)
    languages = {"source_lang": "en", "target_lang": "fr"}
    (folder / "tokenizer_config.json").write_text(json.dumps(languages))
    return convert(folder, "fp32", "--name", "pair")


@pytest.fixture(scope="module")
def address(bundle):
    protocols = "libretranslate,hugging-face"
    with serving("--protocols", protocols, "--bundles", str(bundle)) as address:
        yield address


@pytest.fixture(scope="module")
def http(address):
    with httpx2.Client(base_url=address) as client:
        yield client


def decode(http, **fields):
    answer = http.post("/v1/decode", json={"source": "the weather", **fields})
    return answer.status_code, answer.json()


def test_the_bundle_has_the_pair_without_ids(bundle, http):
    manifest = json.loads((bundle / "bundle.json").read_text())
    assert manifest["task"] == "translation"
    assert manifest["languages"] == {"source": {"en": []}, "target": {"fr": []}}
    (model,) = http.get("/v1/models").json()["models"]
    assert model["languages"]["source"], model["languages"]["target"] == (["en"], ["fr"])


def test_languages_of_the_pair_change_nothing_and_others_are_refused(http):
    status, plain = decode(http)
    assert status == 200
    pair = {"source_language": "en", "target_language": "fr"}
    given = decode(http, **pair)[1]
    assert given["results"] == plain["results"]
    for slot, code in (("source_language", "de"), ("target_language", "en")):
        status, refused = decode(http, **pair | {slot: code})
        assert status == 422
        (fault,) = refused["errors"]
        assert fault["pointer"] == f"/{slot}"
        assert f"is {code!r}, which this model does not know: give another, such as" in str(fault)


def test_stock_clients_translate(address, http):
    expected = decode(http)[1]["results"][0]["hypotheses"][0]["text"]
    hugging_face = InferenceClient(base_url=address, token="")
    for languages in ({}, {"src_lang": "en", "tgt_lang": "fr"}):
        found = hugging_face.translation("the weather", **languages)
        assert found.translation_text == expected
    with pytest.raises(HfHubHTTPError, match="'de', which this model does not know"):
        hugging_face.translation("the weather", src_lang="de", tgt_lang="fr")
    libre = LibreTranslateAPI(address)
    assert libre.languages() == [{"code": "en", "name": "en", "targets": ["fr"]}]
    assert libre.translate("the weather", "en", "fr") == expected
