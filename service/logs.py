"""Configure the log of each process of this service: lines on standard output, which never make a
request wait."""

import json
import logging
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any

import orjson
import structlog

MOST_UNWRITTEN = 1 << 20  # bytes of lines that have not been written
GATHER = 0.05  # seconds in which lines gather, so that few writes interrupt the event loop
FLUSH_TIMEOUT = 1.0  # seconds


class LogWriter:
    """Writes lines to a file descriptor on a thread of its own; None discards them.

    A caller never waits, and no error reaches it: if nobody reads the log or its disk is full,
    lines are dropped and counted. An instance is a logger of structlog and its factory.
    """

    def __init__(self, descriptor: int | None) -> None:
        self.dropped = 0  # lines
        self._descriptor = descriptor
        self._lines = deque[bytes]()
        self._size = 0  # bytes of _lines, and of what is being written
        self._lock = threading.Lock()
        self._arrived = threading.Event()
        self._told = 0  # dropped lines that the log itself has mentioned
        self._writer = threading.Thread(target=self._run, name="log", daemon=True)
        self._writer.start()

    def __call__(self, *_: object) -> "LogWriter":
        return self

    def write(self, text: bytes | str) -> None:
        """Write a line soon, or drop it if MOST_UNWRITTEN bytes wait. The writer's own line,
        which tells of dropped ones, is never dropped."""
        line = text if isinstance(text, bytes) else text.encode(errors="backslashreplace")
        with self._lock:
            fits = self._size + len(line) < MOST_UNWRITTEN
            fits = fits or threading.current_thread() is self._writer
            if fits:
                self._lines.append(line + b"\n")
                self._size += len(line) + 1
            else:
                self.dropped += 1
        if not self._arrived.is_set():
            self._arrived.set()

    debug = info = warning = error = critical = write

    def flush(self) -> None:
        """Wait until all lines are written, at most FLUSH_TIMEOUT seconds."""
        until = time.monotonic() + FLUSH_TIMEOUT
        while self._size and time.monotonic() < until:
            time.sleep(GATHER / 5)

    def _run(self) -> None:
        while True:
            self._arrived.wait()
            time.sleep(GATHER)
            self._arrived.clear()
            while lines := self._take():
                self._write(lines)

    def _take(self) -> list[bytes]:
        """Return the next lines that a pipe takes as a whole, so that the lines of two processes
        never mix; a longer line is returned alone."""
        taken, size = list[bytes](), 0
        with self._lock:
            while self._lines and (not taken or size + len(self._lines[0]) <= select.PIPE_BUF):
                taken.append(self._lines.popleft())
                size += len(taken[-1])
        return taken

    def _write(self, lines: list[bytes]) -> None:
        rest = whole = b"".join(lines)
        try:
            while rest and self._descriptor is not None:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:  # a full disk, a broken pipe
            with self._lock:
                self.dropped += len(lines)
        else:
            self._mention_dropped()
        with self._lock:
            self._size -= len(whole)

    def _mention_dropped(self) -> None:
        """Log how many lines were dropped, now that lines can be written again."""
        if count := self.dropped - self._told:
            self._told += count
            structlog.get_logger().warning("log lines dropped", lines=count)


class LogHandler(logging.Handler):
    """Passes the messages of Python's logging, such as uvicorn's, to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            level = min(max(logging.DEBUG, record.levelno // 10 * 10), logging.CRITICAL)
            fields = {"logger": record.name, "exc_info": record.exc_info}
            structlog.get_logger().log(level, record.getMessage(), **fields)
        except Exception:  # noqa: BLE001  a message that cannot be formatted must not end its sender
            self.handleError(record)


def configure_logs(log_format: str) -> None:
    """Log lines of JSON or text, as `log_format` says: json, console, or auto, which is console on
    a terminal. Tracebacks have no local variables, because these hold user input."""
    terminal = sys.stdout is not None and sys.stdout.isatty()
    renderers: list[Any]
    if log_format == "json" or (log_format == "auto" and not terminal):
        renderers = [
            structlog.processors.format_exc_info,
            structlog.processors.TimeStamper(fmt="iso"),
            render_json,
        ]
    else:
        console = structlog.dev.ConsoleRenderer(
            colors=terminal,
            exception_formatter=structlog.dev.plain_traceback,
            sort_keys=False,  # the first values are the most important ones
        )
        renderers = [structlog.processors.TimeStamper("%Y-%m-%d %H:%M:%S", utc=False), console]
    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.dev.set_exc_info, *renderers],
        logger_factory=LogWriter(None if sys.stdout is None else sys.stdout.fileno()),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[LogHandler()], level=logging.INFO, force=True)


def render_json(_logger: object, _name: str, values: MutableMapping[str, Any]) -> bytes:
    first = {name: values.pop(name) for name in ("timestamp", "level", "event")}
    ordered = {**first, **values}
    try:
        return orjson.dumps(ordered, default=repr)
    except TypeError:  # half of a surrogate pair, or an integer of more than 64 bits
        return json.dumps(ordered, default=repr).encode()


def dropped_lines() -> int:
    """Return how many lines of this process's log were dropped."""
    writer = structlog.get_config()["logger_factory"]
    return writer.dropped if isinstance(writer, LogWriter) else 0


def flush_logs() -> None:
    """Wait until the log is written, before the process ends."""
    writer = structlog.get_config()["logger_factory"]
    if isinstance(writer, LogWriter):
        writer.flush()


def log_error(event: str, **values: object) -> None:
    """Log an error; do nothing if the log cannot be written, because its disk is full, its pipe is
    broken, or there is no standard output: the caller's work goes on without the log."""
    with suppress(OSError, ValueError, AttributeError):
        structlog.get_logger().error(event, **values)


def open_standard_files() -> None:
    """Open /dev/null in the place of standard files that are closed. Otherwise a socket would get
    the number of such a file, and the lines of the log."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
