"""Requests of mixed kinds, and the right answers to them."""

import asyncio
import json
import random
from typing import Any

from benchmarks.kit.http_client import ask
from benchmarks.kit.raw_client import write_request
from benchmarks.load.load import WORDS

BATCH = [WORDS[i % len(WORDS)] for i in range(32)]
KINDS: list[tuple[int, str, dict[str, Any]]] = [  # share in percent, path, body without a word
    (60, "/v1/decode", {}),
    (12, "/v1/decode", {"source": BATCH}),
    (10, "/v1/decode", {"beam_size": 8}),
    (8, "/v1/score", {"target": "HH IY1 D"}),
    (5, "/v1/decode", {"attention": {"kinds": ["encoder", "decoder", "cross"]}}),
    (5, "/v1/encode", {}),
]
TOLERANCE = 1e-4  # of a log-prob, weight or number of a vector


def draw_requests(chance: random.Random, count: int) -> list[bytes]:
    """Return requests of mixed kinds."""
    kinds = chance.choices(KINDS, [share for share, *_ in KINDS], k=count)
    return [
        write_request(path, write_body(chance.choice(WORDS), changes)) for _, path, changes in kinds
    ]


def write_body(word: str, changes: dict[str, Any]) -> bytes:
    return json.dumps({"source": word, **changes}).encode()


def is_right(content: bytes, expected: Any) -> bool:
    try:
        return agree(json.loads(content), expected)
    except ValueError:  # the answer was cut off
        return False


def agree(answer: Any, expected: Any) -> bool:
    """Return whether two JSON documents are equal, except that numbers may differ by TOLERANCE."""
    if isinstance(expected, float):
        return isinstance(answer, float) and abs(answer - expected) <= TOLERANCE
    if isinstance(expected, list):
        return len(answer) == len(expected) and all(map(agree, answer, expected))
    if isinstance(expected, dict):
        return answer.keys() == expected.keys() and all(
            agree(answer[name], value) for name, value in expected.items()
        )
    return answer == expected


class Judge:
    """Knows the right answer to every request that can be drawn. Bytes that were compared number by
    number, and found right, are not parsed again."""

    def __init__(self, port: int) -> None:
        self._expected: dict[bytes, Any] = {}
        self._right: set[tuple[bytes, bytes]] = set()
        asyncio.run(self._send_each_alone(port))

    async def _send_each_alone(self, port: int) -> None:
        for _, path, changes in KINDS:
            for word in WORDS:
                body = write_body(word, changes)
                _, _, content = await ask(port, path, body)
                self._expected[write_request(path, body)] = json.loads(content)

    def is_right(self, request: bytes, content: bytes) -> bool:
        if (request, content) in self._right:
            return True
        if right := is_right(content, self._expected[request]):
            self._right.add((request, content))
        return right
