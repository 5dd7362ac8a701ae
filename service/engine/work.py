"""A job: an entry in the engine, its results so far, and the outcome that its client awaits."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field

from service.engine.scheduler import JobSize, PassSize
from service.errors import HeedError, PassFailed
from service.runtime.cache import CrossCache
from service.search.protocol import Progress
from service.wire.messages import Answer, Entry


def ignore(_: Progress) -> None:
    """Do nothing with the progress of a job that nobody follows."""


@dataclass(slots=True, eq=False)
class Job:
    """The work on one entry. Cancelling `result` frees the rows before the next step.

    If the entry streams, the worker's thread calls `on_progress` after each step. `arrived` is when
    the client sent the entry. `request_id` is for the log.
    """

    entry: Entry
    request_id: str = ""
    arrived: float = field(default_factory=time.monotonic)
    on_progress: Callable[[Progress], None] = ignore
    result: Future[Answer] = field(default_factory=Future[Answer])
    answer: Answer = field(default_factory=Answer)  # what has been computed so far
    reported: bool = False  # progress, which cannot be taken back
    cross: CrossCache | None = None  # of its source, while the job waits for teacher forcing
    rows: int = field(init=False)  # decoded at once: beams or samples
    size: JobSize = field(init=False)  # for the scheduler

    def __post_init__(self) -> None:
        source, search = len(self.entry.source_ids), self.entry.search
        self.rows = search.rows if search else 1
        target = len(self.entry.target_ids)
        if search:
            target = len(search.target_prefix) + search.max_new_tokens
        self.size = JobSize(source, self.rows, source + target)

    def report(self, progress: Progress) -> None:
        self.reported = True
        self.on_progress(progress)

    def finish(self, outcome: Answer | HeedError) -> None:
        """Set the result, unless the job has been cancelled or has failed already."""
        with suppress(InvalidStateError):
            if isinstance(outcome, HeedError):
                self.result.set_exception(outcome)
            else:
                self.result.set_result(outcome)

    @property
    def abandoned(self) -> bool:
        """Return whether nobody waits for this job: it was cancelled, or has failed."""
        return self.result.done()

    @property
    def needs_teacher_forcing(self) -> bool:
        """Return whether a pass over whole targets follows encoding and decoding."""
        return self.entry.scores or bool(self.entry.selection.layers)

    @property
    def targets(self) -> list[Sequence[int]]:
        """Ids that are scored or whose attention is shown, each without its prefix."""
        if self.entry.target_ids:
            return [self.entry.target_ids]
        return [hypothesis.token_ids for hypothesis in self.answer.hypotheses]

    def pass_positions(self, target: Sequence[int]) -> int:
        """Positions of source and target that teacher forcing computes for one target."""
        return len(self.entry.source_ids) + len(self.entry.prefix) + len(target)

    @property
    def pass_size(self) -> PassSize:
        """Positions that teacher forcing computes for all targets, and how many get logits."""
        scored = len(self.entry.target_ids) if self.entry.scores else 0
        return PassSize(sum(map(self.pass_positions, self.targets)), scored)


def as_failure(error: Exception) -> HeedError:
    """Return what the clients are told: an error that was written for them, without its frames,
    which hold the batch."""
    if isinstance(error, HeedError):
        return error.forget_frames()
    return PassFailed(
        f"the model failed on a source of this request ({type(error).__name__}): send it again,"
        " and report the request_id if it fails again"
    )
