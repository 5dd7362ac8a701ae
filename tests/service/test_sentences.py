"""Sentences of texts in any script: where they end, and that nothing between them is lost."""

import re
import unicodedata

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from service.text.sentences import END, FIRST, SPACED, UNSPACED, Span, cut, replace, split

TEXTS = st.text(
    st.sampled_from("aB1é我กد .!?…。！？।؟።,;、\n\r\u2028\u00a0\u3000\"'”“«»)(「」-*👍")
    | st.characters(),
    max_size=60,
)
BY_SCRIPT = {
    "Latin": (
        " ",
        ["It rained.", "Did it rain?", "“It rains!”", "We (both) left…", "Then it ended."],
    ),
    "Spanish": (" ", ["¿Qué hora es?", "¡Las tres!", "Ya voy."]),
    "French": (" ", ["Elle dit : « Non ! »", "« Oui ? »", "Rien."]),
    "Cyrillic": (" ", ["А. С. Пушкин писал.", "Кто это?", "Это он!"]),
    "Greek": (" ", ["Τι κάνεις;", "Καλά, ευχαριστώ.", "Εσύ;"]),
    "Armenian": (" ", ["Սա նախադասություն է։", "Սա էլ։"]),
    "Arabic": (" ", ["ما اسمك؟", "اسمي علي.", "شكرا!"]),
    "Urdu": (" ", ["یہ ایک جملہ ہے۔", "دوسرا ہے۔"]),
    "Devanagari": ("", ["यह एक वाक्य है।", "यह दूसरा है॥", "तीसरा?"]),
    "Bengali": (" ", ["আমি ভাত খাই।", "তুমি কে?"]),
    "Ethiopic": (" ", ["ይህ ነው።", "ሁለተኛ፡፡", "ሦስት፧"]),
    "Khmer": (" ", ["នេះមួយ។", "នេះពីរ៕"]),
    "Burmese": ("", ["ဒါက၊ ဝါကျ။", "ဒုတိယ။"]),
    "Tibetan": (" ", ["བོད་ཡིག །", "དེ་ནས། །"]),
    "Chinese": (
        "",
        ["他说：“你好。”", "“再见！”", "“真的吗？！”", "“３．１４。”他说。", "是吗?", "是的."],
    ),
    "Japanese": (
        "",
        ["これは「ペン。」です。", "「はい。」", "「本当?」と言った。", "何?", "うん｡"],
    ),
    "Korean": (" ", ["네.", "알겠습니다!", "안녕?"]),
}


def parts(text):
    return [text[start:end] for start, end in split(text)]


@given(text=TEXTS)
def test_sentences_are_ordered_and_hold_all_but_white_space(text):
    spans = list(split(text))
    places = [place for span in spans for place in span]
    assert places == sorted(places)
    assert all(start < end for start, end in spans)
    covered = {i for start, end in spans for i in range(start, end)}
    assert all(i in covered for i, character in enumerate(text) if not character.isspace())
    assert all(part == part.strip() and len(part.splitlines()) == 1 for part in parts(text))


@given(text=TEXTS)
def test_sentences_put_back_into_their_places_are_the_text(text):
    spans = list(split(text))
    assert replace(text, spans, parts(text)) == text
    assert replace(text, spans, ["" for _ in spans]).strip() == ""


@given(text=TEXTS)
def test_a_sentence_is_split_no_further(text):
    assert all(len(list(split(part))) == 1 for part in parts(text))


@given(lines=st.lists(st.text(st.sampled_from("ab. !?。“”1")), max_size=6), data=st.data())
def test_lines_are_split_apart(lines, data):
    """Whatever ends a line: what is before and after has no influence."""
    end = data.draw(st.sampled_from(["\n", "\r\n", "\n\n", "\u2028", "\x0b"]))
    assert parts(end.join(lines)) == [part for line in lines for part in parts(line)]


@pytest.mark.parametrize(("space", "sentences"), BY_SCRIPT.values(), ids=BY_SCRIPT)
def test_sentences_of_a_script_are_found_again(space, sentences):
    assert parts(space.join(sentences)) == sentences
    assert parts("\n\n  ".join(sentences)) == sentences


@pytest.mark.parametrize(
    "sentence",
    [
        "It costs 3.14 or 1.000 euros, v1.2.3 more.",
        "J. R. R. Tolkien and A. Milne wrote.",
        "Mr. Li met Dr. Wu in St. Ives.",
        "See Fig. 3 and Art. 5 there.",
        "Am 3. Oktober z. B. regnete es.",
        "The U.S. Army and e.g. Bonn, i.e. Germany.",
        "Bread, milk etc. and so on.",
        "Well... that was it.",
        "“Really?” he asked.",
        "Open www.example.org/?q=a!b or a.txt now.",
        "1. Introduction",
        "Great! 👍",
        "* * *",
        "...",
    ],
)
def test_marks_inside_a_sentence_do_not_end_it(sentence):
    assert parts(sentence) == [sentence]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("I don't. Then do.", ["I don't.", "Then do."]),
        ("Es war 1990. Dann kam er.", ["Es war 1990.", "Dann kam er."]),
        ("So… Now! (Yes.) [No?] End", ["So…", "Now!", "(Yes.)", "[No?]", "End"]),
        ("how? i see! so", ["how?", "i see!", "so"]),
        ("Wow‼️ Yes?!?! No", ["Wow‼️", "Yes?!?!", "No"]),
        ("- one.\n- Two. Three\n\n***\n", ["- one.", "- Two.", "Three", "***"]),
        ("安い!吉野家だ。", ["安い!", "吉野家だ。"]),
        ("安い!\U00020bb7野家だ。", ["安い!", "\U00020bb7野家だ。"]),
        (" \n\t\r\n", []),
        ("", []),
    ],
)
def test_examples(text, sentences):
    assert parts(text) == sentences


def test_the_marks_are_those_of_unicode():
    """The regex module has Unicode's own table."""
    own = re.compile(f"[{SPACED}{UNSPACED}\uff0e]")
    added, left_out = set("…\u037e\u0f0d\u0f0e"), {"\u104a"}
    assigned = [chr(i) for i in range(0x110000) if unicodedata.category(chr(i)) not in ("Cn", "Cs")]
    expected = {each for each in assigned if regex.match(r"\p{Sentence_Terminal}", each)}
    assert {each for each in assigned if own.match(each)} == (expected | added) - left_out


def cut_parts(text, limit):
    """Cut where at most `limit` letters fit."""

    def fits(span):
        return sum(map(str.isalpha, text[span.start : span.end])) <= limit

    return [text[start:end] for start, end in cut(text, Span(0, len(text)), fits)]


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        ("ab cd, ef gh, ij kl", 12, ["ab cd, ef gh, ij kl"]),
        ("ab cd, ef gh, ij kl", 11, ["ab cd, ef gh,", "ij kl"]),
        ("ab cd, ef gh ij kl", 6, ["ab cd,", "ef gh ij", "kl"]),
        ("ab  cd ef", 3, ["ab", "cd", "ef"]),
        ("一二，三四、五六", 5, ["一二，三四、", "五六"]),
        ("ab cdefg hi", 4, ["ab", "cdefg hi"]),
        ("abcdef", 4, ["abcdef"]),
    ],
)
def test_a_long_sentence_is_cut_after_the_last_clause_that_fits_else_at_a_space(
    text, limit, expected
):
    assert cut_parts(text, limit) == expected


@given(
    words=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=40),
    limit=st.integers(4, 20),
)
def test_cuts_at_spaces_are_those_of_filling_lines(words, limit):
    filled = [[]]
    for word in words:
        if sum(map(len, filled[-1])) + len(word) > limit:
            filled.append([])
        filled[-1].append(word)
    assert cut_parts(" ".join(words), limit) == [" ".join(line) for line in filled if line]


def test_what_ends_a_sentence_begins_with_what_is_searched_first():
    """A text without such a character is skipped."""
    ends = [c for c in map(chr, range(0x20000)) if END.search(f"\u03b1{c}{c}")]
    assert len(ends) > 150
    assert [c for c in ends if not FIRST.match(c)] == []
