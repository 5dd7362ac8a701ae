import random

from hypothesis import given
from hypothesis import strategies as st

from service.wire.frames import FRAME, FrameDecoder, encode_message

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
