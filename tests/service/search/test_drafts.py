"""How a draft finds its way along a target: the steps that it takes, not their time."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.search.drafts import MOST_DRAFTED, Draft
from service.search.options import ABSENT

RANDOM = random.Random(1)
TARGET = [RANDOM.randrange(1000) for _ in range(120)] + [2]


def follow(target, ids, prefix=0, most=MOST_DRAFTED):
    """Let a search that would choose `target` read a draft. Return the draft, and what it proposed
    at each step."""
    draft, done, proposals = Draft(tuple(ids), target[:prefix]), prefix, []
    while done < len(target):
        proposed = draft.propose(most)
        start = done
        for expected in [*proposed, None]:
            done += 1
            if target[done - 1] != expected or done == len(target):
                break
        draft.follow(proposed, target[start:done], target[:done])
        proposals.append(proposed)
    return draft, proposals


def edited(change):
    """The target with every tenth token changed."""
    return [
        new for i, token in enumerate(TARGET) for new in (change(token) if i % 10 == 5 else [token])
    ]


@pytest.mark.parametrize(
    ("ids", "most"),
    [
        (TARGET, 9),
        (edited(lambda _: [RANDOM.randrange(1000, 2000)]), 32),
        (edited(lambda _: []), 32),
        (edited(lambda token: [RANDOM.randrange(1000, 2000), token]), 32),
        (edited(lambda _: [ABSENT]), 32),
        (TARGET[60:], 72),
        (TARGET[:30] + TARGET[60:], 48),
        ([*TARGET[:30], *range(2000, 2040), *TARGET[30:]], 32),
    ],
    ids=["exact", "replaced", "missing", "additional", "absent", "begins late", "gap", "insertion"],
)
def test_a_draft_like_the_target_takes_few_steps(ids, most):
    draft, proposals = follow(TARGET, ids)
    assert len(proposals) <= most
    assert draft.accepted + len(proposals) - len(TARGET) in (0, 1)  # the last may be accepted


def test_letters_with_marks_in_between_are_followed():
    text = "the quick brown fox jumps over the lazy dog and runs into the woods again"
    marked = " ".join(word[:2] + "'" + word[2:] for word in text.split())
    draft, proposals = follow([*map(ord, marked)], [*map(ord, text)])
    assert len(proposals) < len(marked) / 3
    assert draft.accepted > draft.drafted / 2


@pytest.mark.parametrize("ids", [[], [2], [*range(1000, 1100)], [ABSENT] * 50], ids=str)
def test_a_useless_draft_is_rarely_tried(ids):
    draft, proposals = follow(TARGET, ids)
    assert draft.accepted == 0
    assert sum(map(bool, proposals)) <= 8
    assert draft.drafted <= 25


def test_a_text_of_letters_with_wrong_ones_is_followed():
    """Equal letters elsewhere in the draft do not lead astray."""
    chance = random.Random(4)
    text = [chance.randrange(30) for _ in range(300)]
    wrong = [chance.randrange(30) if chance.random() < 0.1 else each for each in text]
    _, proposals = follow(text, wrong)
    assert len(proposals) < 300 / 4


@given(
    target=st.lists(st.integers(0, 3), min_size=1, max_size=120),
    ids=st.lists(st.integers(0, 3), max_size=120),
)
def test_failures_are_rare_in_a_target_of_any_length(target, ids):
    """A pass fails if it accepts nothing. Each needs more evidence than the one before."""
    draft, proposals = follow(target, ids)
    passes = sum(map(bool, proposals))
    assert passes <= 2 + draft.accepted + (2 * len(target)) ** 0.5


def test_a_draft_goes_on_behind_the_target_prefix():
    draft, proposals = follow(TARGET, TARGET, prefix=40)
    assert len(proposals) <= 7
    assert draft.accepted >= len(TARGET) - 40 - len(proposals)
    _, other = follow(TARGET, TARGET[20:], prefix=40)
    assert len(other) <= 7


@given(
    target=st.lists(st.integers(0, 4), min_size=1, max_size=40),
    ids=st.lists(st.integers(ABSENT, 4), max_size=40),
    most=st.integers(1, MOST_DRAFTED),
)
def test_any_draft_is_followed_to_the_end_of_the_target(target, ids, most):
    draft, proposals = follow(target, ids, most=most)
    assert len(proposals) <= len(target)
    assert max(map(len, proposals)) <= most
    assert ABSENT not in [token for proposed in proposals for token in proposed]
    assert draft.drafted == sum(map(len, proposals)) >= draft.accepted
