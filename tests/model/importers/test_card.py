"""The model card of a converted checkpoint says what its files say, and what requests send."""

from model.importers.card import language_lines, task_lines
from model.usage import Usage


def test_tasks_are_listed_with_their_prefixes():
    english = {"prefix": "translate English to German: ", "max_length": 300, "num_beams": 4}
    tasks = {"summarization": {"min_length": 30}, "translation_en_to_de": english}
    assert task_lines(tasks)[-3:-1] == [
        "| summarization |  | min_length 30 |",
        "| translation_en_to_de | `translate English to German: ` | max_length 300, num_beams 4 |",
    ]
    assert task_lines({}) == []


def test_languages_are_those_of_requests():
    codes = {"eng_Latn": [4], "fra_Latn": [5]}
    usage = Usage(decoder_start=[2], max_new_tokens=9, unknown_id=None, target_languages=codes)
    assert language_lines(usage) == ["`target_language` is one of eng_Latn, fra_Latn.", ""]
