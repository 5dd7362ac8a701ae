"""What the two processes say to each other."""

import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.search.protocol import ALTERNATIVE, Hypothesis
from service.wire import FRAME, Answer, FrameDecoder, encode_message

Contents = st.lists(
    st.one_of(st.binary(max_size=20), st.integers(1, 3 * FRAME).map(bytes)), max_size=6
)


@given(contents=Contents, piece=st.sampled_from([1 << 12, FRAME, 1 << 30]), seed=st.integers())
def test_messages_arrive_whole_however_their_frames_are_mixed_and_cut(contents, piece, seed):
    """Frames of one message keep their order, as on a socket."""
    random_ = random.Random(seed)
    sending = [encode_message(number, content) for number, content in enumerate(contents)]
    sent = b""
    while sending:
        frames = random_.choice(sending)
        if (frame := next(frames, None)) is None:
            sending.remove(frames)
        else:
            sent += frame
    decoder, arrived = FrameDecoder(), {}
    for start in range(0, len(sent), piece):
        for message in decoder.feed(sent[start : start + piece]):
            arrived[message.number] = message.load()
    assert arrived == dict(enumerate(contents))


def test_bytes_that_come_one_by_one_make_a_message():
    decoder = FrameDecoder()
    (frame,) = encode_message(7, "short")
    arrived = [message for byte in frame for message in decoder.feed(bytes([byte]))]
    assert [(one.number, one.load(), one.is_long) for one in arrived] == [(7, "short", False)]


PLAIN = Hypothesis([5, 6, 2], [-0.1, -0.2, -0.3], "eos")
TOP = np.array(
    [[(5, -0.1), (6, -2.0)], [(6, -0.2), (5, -1.0)], [(2, -0.3), (5, -4.0)]], ALTERNATIVE
)
ALTERNATIVES = PLAIN._replace(top_log_probs=TOP)


@pytest.mark.parametrize(
    ("answer", "size"),
    [
        (Answer(), 0),
        (Answer(memory=np.zeros((3, 4))), 12),
        (Answer(hypotheses=[PLAIN, PLAIN]), 6),
        (Answer(hypotheses=[PLAIN], attention=[{"cross": np.zeros((2, 3))}]), 9),
        (Answer(log_probs=np.zeros(7)), 7),
        (Answer(hypotheses=[ALTERNATIVES]), 3 + 3 * 6),
        (Answer(hypotheses=[PLAIN, ALTERNATIVES, PLAIN]), 9 + 3 * 6),
    ],
)
def test_the_size_of_an_answer_counts_what_takes_time_to_write(answer, size):
    """An alternative token is written with its text and its log-prob: as long as three numbers."""
    assert answer.size == size


@pytest.mark.parametrize("count", [1, 20])
def test_an_alternative_that_is_received_takes_a_few_bytes(count):
    top = np.zeros((2000, count), ALTERNATIVE)
    top["id"], top["log_prob"] = np.arange(count) + 300, -np.arange(count) - 0.5
    answer = Answer(hypotheses=[PLAIN._replace(top_log_probs=top)])
    decoder = FrameDecoder()
    (message,) = [each for frame in encode_message(1, answer) for each in decoder.feed(frame)]
    tracemalloc.start()
    received = message.load()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_array_equal(received.hypotheses[0].top_log_probs, top)
    assert taken < 8 * top.size + 10_000
