"""What the two processes say to each other."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.search.protocol import Hypothesis
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
ALTERNATIVES = PLAIN._replace(top_log_probs=[[(5, -0.1), (6, -2.0)], [(6, -0.2)], []])


@pytest.mark.parametrize(
    ("answer", "size"),
    [
        (Answer(), 0),
        (Answer(memory=np.zeros((3, 4))), 12),
        (Answer(hypotheses=[PLAIN, PLAIN]), 6),
        (Answer(hypotheses=[PLAIN], attention=[{"cross": np.zeros((2, 3))}]), 9),
        (Answer(log_probs=np.zeros(7)), 7),
        (Answer(hypotheses=[ALTERNATIVES]), 3 + 3 * 3),
    ],
)
def test_the_size_of_an_answer_counts_what_takes_time_to_write(answer, size):
    """An alternative token is written with its text and its log-prob: as long as three numbers."""
    assert answer.size == size
