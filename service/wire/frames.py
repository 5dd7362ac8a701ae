"""Message framing on the socket between the HTTP process and an engine.

Both directions use the same format: a message is pickled and cut into frames, each with the number
of the message it belongs to, so that frames of short messages can pass between those of a long one.
Pickle is safe here: the socket pair has no name, only the two processes hold its ends, and what
they pickle are dataclasses of numbers, strings and arrays, never bytes of a client.
"""

import pickle
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# Bytes that follow, whether the message has more frames, its number
FRAME_HEADER = struct.Struct("!Q?Q")
FRAME = 1 << 18  # most bytes of content in one frame


def encode_message(number: int, message: object) -> Iterator[bytes]:
    """Pickle a message and return its frames. Errors of pickling are raised here."""
    return cut_frames(number, pickle.dumps(message, pickle.HIGHEST_PROTOCOL))


def cut_frames(number: int, content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), FRAME):
        part = content[start : start + FRAME]
        yield FRAME_HEADER.pack(len(part), start + FRAME < len(content), number) + part


@dataclass(frozen=True, slots=True)
class Message:
    """A whole message, still pickled: unpickling a long one would block an event loop."""

    number: int
    parts: list[bytes]

    @property
    def is_long(self) -> bool:
        return len(self.parts) > 1

    def load(self) -> Any:
        return pickle.loads(b"".join(self.parts) if self.is_long else self.parts[0])


class FrameDecoder:
    """Turns received bytes back into messages, wherever the bytes were cut on their way."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._parts: dict[int, list[bytes]] = {}  # frames of incomplete messages, by number

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that `data` completes."""
        messages: list[Message] = []
        self._received += data
        while len(self._received) >= FRAME_HEADER.size:
            length, more, number = FRAME_HEADER.unpack_from(self._received)
            end = FRAME_HEADER.size + length
            if len(self._received) < end:
                break
            part = bytes(memoryview(self._received)[FRAME_HEADER.size : end])
            del self._received[:end]
            parts = self._parts.setdefault(number, [])
            parts.append(part)
            if not more:
                messages.append(Message(number, self._parts.pop(number)))
        return messages
