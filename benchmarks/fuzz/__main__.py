"""Send hostile and odd requests to a server and judge every answer: python -m benchmarks.fuzz

No answer may be a failure of the service, take longer than HANG seconds, or be malformed; refusals
must be small problem documents. Afterwards the service must be ready, and hold no more memory.
"""

import asyncio
import contextlib
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import active_children
from typing import Annotated, Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import safetensors.numpy
import typer
from PIL import Image

from benchmarks.fuzz.cases import Case, case_of
from benchmarks.kit.http_client import ask
from benchmarks.kit.memory import family, read_status
from benchmarks.kit.serving import serving
from service.api.answering.responses import Problem
from service.settings.settings import DEFAULT_BUNDLE

HANG = 10.0  # seconds
LARGEST_PROBLEM = 4096  # bytes
CONNECTIONS = 6
GROWTH, WARM = 1.1, 20_000  # most growth of memory, after this many cases
PROBLEM = "application/problem+json"
NOT_HTTP = "text/plain; charset=utf-8"  # the server's answer to what it cannot parse


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    content: bytes


def fail(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def read_strict_json(content: bytes) -> Any:
    return json.loads(content, parse_constant=fail)


def read_png(content: bytes) -> None:
    with Image.open(io.BytesIO(content)) as image:
        image.load()


def read_npz(content: bytes) -> None:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        read_strict_json(arrays["meta"].tobytes() if arrays["meta"].ndim else arrays["meta"].item())


def read_html(content: bytes) -> None:
    if not content.decode().rstrip().endswith("</html>"):
        raise ValueError("the page is cut off")


def read_events(content: bytes) -> None:
    events = [each for each in content.decode().split("\n\n") if not each.startswith(":")]
    if events.pop():
        raise ValueError("the last event is cut off")
    names = [event.split("\n")[0] for event in events]
    if names[-1] not in ("event: done", "event: error"):
        raise ValueError("the stream has no end")
    for event in events:
        data = (line[6:] for line in event.split("\n") if line.startswith("data: "))
        read_strict_json("\n".join(data).encode())


READERS: dict[str, Callable[[bytes], object]] = {  # raise if the content is malformed
    "application/json": read_strict_json,
    "application/npz": read_npz,
    "application/safetensors": safetensors.numpy.load,
    "image/svg+xml": ElementTree.fromstring,
    "image/png": read_png,
    "text/html": read_html,
    "text/event-stream": read_events,
}


def judge(case: Case, answer: Reply) -> str:
    """Return what is wrong with the answer; "" if nothing is."""
    status, headers, content = answer
    media_type = headers.get("content-type", "")
    if status >= 500:
        return f"status {status}: {content[:300]!r}"
    if status == 429 and "retry-after" not in headers:
        return "429 without Retry-After"
    if status >= 400:
        if status == 400 and case.kind in ("broken", "half-closed") and media_type == NOT_HTTP:
            return ""
        return judge_problem(media_type, content) if content else ""
    if "head" in case.content[:5].decode("latin-1").lower() or status in (304, 307):
        return ""
    reader = READERS.get(media_type.partition(";")[0])
    try:
        return "" if reader is None or reader(content) is not False else "malformed"
    except Exception as error:  # noqa: BLE001 (readers raise what their libraries raise)
        return f"malformed {media_type}: {error!r}"


def judge_problem(media_type: str, content: bytes) -> str:
    if media_type != PROBLEM:
        return f"a refusal of type {media_type!r}: {content[:200]!r}"
    if len(content) > LARGEST_PROBLEM:
        return f"a problem document of {len(content)} bytes"
    try:
        Problem.model_validate_json(content)
    except ValueError as error:
        return f"an invalid problem document: {error}"
    return ""


async def read_answer(reader: asyncio.StreamReader, is_head: bool) -> Reply | None:
    """Return the next answer of a connection; None if the server has closed it."""
    try:
        top = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = top.decode("latin-1").split("\r\n")[:-2]
    headers = dict(line.lower().split(": ", 1) for line in lines)
    if (status := int(first.split()[1])) == 100:
        return await read_answer(reader, is_head)
    if is_head or status in (204, 304):
        return Reply(status, headers, b"")
    if "content-length" in headers:
        return Reply(status, headers, await reader.readexactly(int(headers["content-length"])))
    if headers.get("transfer-encoding") != "chunked":
        return Reply(status, headers, await reader.read(-1))
    pieces: list[bytes] = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        pieces.append((await reader.readexactly(size + 2))[:-2])
    return Reply(status, headers, b"".join(pieces))


async def send(port: int, case: Case) -> list[Reply]:
    """Send a case and return its answers, in at most HANG seconds. Raise TimeoutError."""
    answers: list[Reply] = []
    async with asyncio.timeout(HANG):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 17)
        try:
            writer.write(case.content)
            if case.ends:
                writer.write_eof()
            with contextlib.suppress(ConnectionError):  # it was closed before all was sent
                await writer.drain()
            is_head = case.content.startswith(b"HEAD ")
            while len(answers) != case.answers and (answer := await read_answer(reader, is_head)):
                answers.append(answer)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            if case.answers is not None:
                raise ValueError(f"the answer was cut off: {error!r}") from error
        finally:
            writer.close()
    return answers


@dataclass(slots=True)
class Found:
    """The findings of a campaign: cases by kind, answers by status, and what was wrong."""

    kinds: Counter[str] = field(default_factory=Counter[str])
    statuses: Counter[int] = field(default_factory=Counter[int])
    wrong: list[str] = field(default_factory=list[str])


async def run_case(port: int, seed: int, number: int, found: Found) -> None:
    case = case_of(seed, number)
    found.kinds[case.kind] += 1

    def note(what: str) -> None:
        found.wrong.append(f"--seed {seed} --only {number} ({case.kind}): {what}")

    try:
        answers = await send(port, case)
    except TimeoutError:
        return note(f"no answer in {HANG:g} s")
    except ValueError as error:
        return note(str(error))
    found.statuses.update(answer.status for answer in answers)
    if case.answers is not None and len(answers) != case.answers:
        note(f"{len(answers)} answers instead of {case.answers}")
    for answer in answers:
        if wrong := judge(case, answer):
            note(wrong)
    return None


async def campaign(port: int, seed: int, numbers: Sequence[int], found: Found) -> None:
    """Send these cases, over CONNECTIONS connections at once."""
    left = iter(numbers)

    async def client() -> None:
        for number in left:
            await run_case(port, seed, number, found)

    await asyncio.gather(*(client() for _ in range(CONNECTIONS)))


def fuzz(port: int, seed: int, cases: int) -> Found:
    """Send the cases and return what was found, memory and readiness included."""
    found, held = Found(), list[int]()
    for start in range(0, cases, WARM):
        asyncio.run(campaign(port, seed, range(start, min(start + WARM, cases)), found))
        (server,) = active_children()
        assert server.pid
        memory = [read_status(each).held for each in family(server.pid)]
        held.append(sum(memory))
        typer.echo(f"{start + WARM:,}: {' and '.join(f'{each / 1e6:.0f}' for each in memory)} MB")
    if held[-1] > GROWTH * held[0]:
        found.wrong.append(f"memory grew from {held[0] / 1e6:.0f} to {held[-1] / 1e6:.0f} MB")
    status, *_ = asyncio.run(ask(port, "/readyz", None))
    if status != 200:
        found.wrong.append(f"/readyz is {status} afterwards")
    return found


def main(
    cases: Annotated[int, typer.Option(help="How many requests")] = 100_000,
    seed: Annotated[int, typer.Option(help="Another one gives other requests")] = 0,
    only: Annotated[int | None, typer.Option(help="Repeat this case, and print it")] = None,
) -> None:
    """Send hostile and odd requests to a server of the default model, and judge the answers."""
    with serving(DEFAULT_BUNDLE) as port:
        if only is None:
            found = fuzz(port, seed, cases)
        else:
            found = Found()
            typer.echo(re.sub(rb"(.)\1{99,}", rb"\1...", case_of(seed, only).content))
            asyncio.run(run_case(port, seed, only, found))
    typer.echo(f"cases: {dict(found.kinds)}\nanswers: {dict(sorted(found.statuses.items()))}")
    typer.echo("\n".join(found.wrong) or "nothing wrong")
    raise typer.Exit(bool(found.wrong))


if __name__ == "__main__":
    typer.run(main)
