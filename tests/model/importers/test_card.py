"""The model card of a converted checkpoint says what its files say, and what requests send."""

from dataclasses import replace

from model.importers.card import language_lines, name_languages, task_lines
from model.usage import Usage

SUMMARY = {"min_length": 30, "early_stopping": True, "beam_search": 7}


def test_tasks_are_listed_with_their_prefixes():
    english = {"prefix": "translate English to German: ", "max_length": 300, "num_beams": 4}
    tasks = {"summarization": SUMMARY, "translation_en_to_de": english}
    assert task_lines(tasks, 0)[-3:-1] == [
        "| summarization |  | min_length 30, early_stopping True, beam_search 7"
        " | min_new_tokens 29, early_stopping true |",
        "| translation_en_to_de | `translate English to German: ` | max_length 300, num_beams 4"
        " | max_new_tokens 299, beam_size 4 |",
    ]
    assert "| max_new_tokens 298, beam_size 4 |" in task_lines(tasks, 1)[-2]
    assert task_lines({}, 0) == []


def test_languages_are_those_of_requests():
    codes = {"eng_Latn": [4], "fra_Latn": [5]}
    usage = Usage(decoder_start=[2], max_new_tokens=9, unknown_id=None, target_languages=codes)
    assert language_lines(usage) == ["`target_language` is one of eng_Latn, fra_Latn.", ""]
    assert name_languages({}, usage) == "eng_Latn, fra_Latn"
    assert name_languages({"language": ["en", "fr"]}, usage) == "en, fr"
    assert name_languages({}, replace(usage, target_languages={})) == "not said"
