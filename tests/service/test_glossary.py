"""Words of a glossary are found as whole words, the longest first."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.text.glossary import Glossary


@pytest.mark.parametrize(
    ("entries", "text", "found"),
    [
        (["contract"], "The Contract, the CONTRACT's end", ["contract"]),
        (["contract"], "contractor, subcontract", []),
        (["US"], "us, and the US", ["US"]),
        (["US"], "us", []),
        (["us", "US"], "US", ["US"]),
        (["us", "US"], "Us", ["us"]),
        (["contract", "contract of sale"], "a contract\n of  sale", ["contract of sale"]),
        (["a b", "b c", "c"], "a b c", ["a b", "c"]),
        (["of sale", "contract of"], "contract of sale", ["contract of"]),
        (["§ 5"], "nach §5 und § 52", ["§ 5"]),
        (["契約"], "売買契約書", ["契約"]),
        (["สัญญา"], "ตามสัญญานี้", ["สัญญา"]),
        (["é"], "e\u0301", ["é"]),
        (["straße"], "STRASSE Straße", ["straße"]),
        (["b", "a"], "a b a", ["a", "b"]),
        (["a"], "", []),
    ],
)
def test_entries_of_a_text(entries, text, found):
    assert Glossary(entries).find(text) == found


Words = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3).map(" ".join)


@given(entries=st.sets(Words, min_size=1), text=st.lists(Words, max_size=6).map(" ".join))
def test_entries_are_those_that_an_alternation_matches(entries, text):
    longest_first = sorted(entries, key=len, reverse=True)
    pattern = re.compile(rf"\b(?:{'|'.join(longest_first)})\b")
    expected = [*dict.fromkeys(pattern.findall(unicodedata.normalize("NFC", text)))]
    assert Glossary(entries).find(text) == expected
