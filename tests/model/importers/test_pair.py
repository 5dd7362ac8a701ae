"""The files of an OPUS-MT name its pair of languages, its task and its licence."""

import json

import pytest
import torch
from safetensors.torch import save_file

from model.importers.checkpoint import Checkpoint
from model.importers.readme import (
    find_licence,
    joined_text,
    read_front_matter,
    task_of,
    texts_of,
)
from model.importers.usage.pair import find_pair
from model.network.config import InputError

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


@pytest.mark.parametrize(
    ("head", "licence", "tags"),
    [
        ("license: mit\ndate: 2023-02-30\n", "mit", []),
        ("license: mit\nlanguage: no\nsize: !!int large\n", "mit", ["no"]),
        ("license: null\nlanguage: ~\n", "", []),
        ("license:\nlanguage: [no, en]\n", "", ["no", "en"]),
        pytest.param(f"license: mit\nnested: {'[' * 5000}\n", "", [], id="nested"),
    ],
)
def test_the_head_of_readme_is_read_as_texts(tmp_path, head, licence, tags):
    (tmp_path / "README.md").write_text(f"---\n{head}---\n")
    found = read_front_matter(tmp_path)
    assert (joined_text(found.get("license")), texts_of(found.get("language"))) == (licence, tags)


def test_a_folder_without_readme_needs_no_licence_unless_it_is_of_the_hub(tmp_path):
    assert find_licence(tmp_path, "") == ""
    snapshot = tmp_path / "models--owner--name" / "snapshots" / "a1"
    snapshot.mkdir(parents=True)
    with pytest.raises(InputError, match=r"has no README\.md that names its license: give --lic"):
        find_licence(snapshot, "")
    assert find_licence(snapshot, "MIT") == "MIT"
