"""Jobs, which are the entries in the engine, and the decision which of them run together.

Rows of a batch are padded to the longest, so budgets count padded positions. In an encoder or
teacher-forcing pass a position may count several times: additive and Gaussian scores hold a vector
for every pair of positions.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from typing_extensions import override

from service.errors import HeedError
from service.runtime.cache import Cross
from service.search.protocol import Progress
from service.wire import Answer, Entry

MAX_LOGITS_BYTES = 256 << 20  # of all workers; a step allocates once or twice as much more
DELAY = 2  # weight of a position in a pass that delays rows being decoded
PASS = 32  # positions that take as long as what a pass of the encoder takes besides them
KEPT, OF = 64, 512  # positions of a batch that only the first jobs of small requests may take

Item = TypeVar("Item")


class JobSize(NamedTuple):
    """Positions of a source; the rows that decode it; and the most positions of one of these rows,
    source and target together."""

    source: int
    rows: int
    positions: int


class PassSize(NamedTuple):
    """Positions of a job in a teacher-forcing pass, and how many of them get logits: those of a
    target that is scored."""

    positions: int
    scored: int


def ignore(_: Progress) -> None:
    """Do nothing with the progress of a job that nobody follows."""


class Outcome(Future[Answer]):
    """The future of a job. Workers ask at each step which of their jobs have `ended`, without the
    lock that `done` takes."""

    ended = False

    @override
    def cancel(self) -> bool:
        if not super().cancel():
            return False
        self.ended = True
        return True

    @override
    def set_result(self, result: Answer) -> None:
        super().set_result(result)
        self.ended = True

    @override
    def set_exception(self, exception: BaseException | None) -> None:
        super().set_exception(exception)
        self.ended = True


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
    result: Outcome = field(default_factory=Outcome)
    answer: Answer = field(default_factory=Answer)  # what has been computed so far
    is_first: bool = True  # of its request to leave the queue
    is_small: bool = False  # of a request that fits whole into the room kept for small ones
    progressed: int = 0  # tokens, or steps of beams, since it was last begun
    reported: int = 0  # those whose progress was sent, which cannot be taken back
    cross: Cross | None = None  # of its source, while the job waits for teacher forcing
    rows: int = field(init=False)  # decoded at once: beams or samples
    size: JobSize = field(init=False)  # for the scheduler
    ablates_encoder: bool = field(init=False)  # whether heads of the encoder are switched off
    ablates_decoder: bool = field(init=False)

    def __post_init__(self) -> None:
        source, search = len(self.entry.source_ids), self.entry.search
        self.rows = self.entry.rows
        target = len(self.entry.target_ids)
        if search:
            target = len(search.target_prefix) + search.max_new_tokens
        self.size = JobSize(source, self.rows, source + target)
        kinds = {head.kind for head in self.entry.ablated}
        self.ablates_encoder = "encoder" in kinds
        self.ablates_decoder = bool(kinds - {"encoder"})

    def report(self, progress: Progress) -> None:
        """Pass on what is new: a job that is computed again repeats what it has reported."""
        known = self.reported - self.progressed
        self.progressed += len(progress) if isinstance(progress, list) else 1
        if self.progressed > self.reported:
            self.reported = self.progressed
            self.on_progress(progress[known:] if isinstance(progress, list) else progress)

    def forget(self) -> None:
        """Drop what has been computed, but keep the count of reported progress."""
        self.answer, self.cross, self.progressed = Answer(), None, 0

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
        return self.result.ended

    @property
    def needs_teacher_forcing(self) -> bool:
        """Return whether a pass over whole targets follows encoding and decoding."""
        entry = self.entry
        return entry.scores or entry.aligns or bool(entry.selection.layers)

    @property
    def wants_memory(self) -> bool:
        """Return whether the encoder's memory is the answer."""
        return not (self.entry.search or self.needs_teacher_forcing)

    @property
    def targets(self) -> list[Sequence[int]]:
        """Ids that are scored or aligned, or whose attention is shown, without prefix."""
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


@dataclass(slots=True)
class Held:
    """Rows that a worker holds, by rows per source. Jobs with the same number are one batch, so
    their rows are padded to the longest of them."""

    rows: dict[int, int] = field(default_factory=dict[int, int])
    longest: dict[int, int] = field(default_factory=dict[int, int])

    @classmethod
    def of(cls, sizes: Iterable[JobSize]) -> "Held":
        positions = defaultdict[int, list[int]](list)
        for _, rows, of_row in sizes:
            positions[rows].append(of_row)
        return cls(
            {rows: rows * len(each) for rows, each in positions.items()},
            {rows: max(each) for rows, each in positions.items()},
        )

    def add(self, size: JobSize) -> None:
        self.rows[size.rows] = self.rows.get(size.rows, 0) + size.rows
        self.longest[size.rows] = max(self.longest.get(size.rows, 0), size.positions)

    @property
    def positions(self) -> int:
        return sum(rows * self.longest[per_source] for per_source, rows in self.rows.items())


@dataclass(frozen=True, slots=True)
class Scheduler:
    """The budgets of a model, per worker unless noted, and which jobs fit into them."""

    max_batch_tokens: int  # padded positions that are decoded
    max_pass_tokens: int  # padded positions of one encoder or teacher-forcing pass
    max_logits_bytes: int  # float32 logits of a step (every row) or a scoring pass (every position)
    target_vocab_size: int
    pass_cost: int = 1  # how many times each position of a pass counts

    @property
    def kept(self) -> int:
        """Positions of a batch that are kept for small new requests."""
        return KEPT * (self.max_batch_tokens // OF)

    def without_kept(self) -> "Scheduler":
        """Return the budgets that any job may use."""
        return replace(
            self,
            max_batch_tokens=self.max_batch_tokens - self.kept,
            max_logits_bytes=self.max_logits_bytes - self.max_logits_bytes * KEPT // OF,
        )

    def is_small(self, rows: int, positions: int) -> bool:
        """Return whether a request of so many rows, of so many positions each, fits into what is
        kept."""
        return rows * positions <= self.kept

    def admit(self, waiting: Iterable[JobSize], running: Iterable[JobSize]) -> int:
        """Return how many of the first waiting jobs may be encoded now and then decoded along with
        the running ones. A job that is too large to be decoded with others runs alone. A pass
        encodes at least one job, and few if it delays rows that wait for their next token."""
        held = Held.of(running)
        delays, admitted, longest_source = bool(held.rows), 0, 0
        for size in waiting:
            held.add(size)
            longest_source = max(longest_source, size.source)
            encoded = longest_source * (admitted + 1)
            if admitted and not self._fits_a_pass(encoded, delays):
                break
            if not self._can_decode(held) and (delays or admitted):
                break
            admitted += 1
        return admitted

    def one_pass(self, sizes: Iterable[PassSize], delays: bool) -> int:
        """Return how many of the first jobs one teacher-forcing pass may hold: at least one, and
        few if the pass delays rows that wait for their next token."""
        longest = longest_scored = count = 0
        for size in sizes:
            longest = max(longest, size.positions)
            longest_scored = max(longest_scored, size.scored)
            fits = self._fits_a_pass(longest * (count + 1), delays)
            if count and not (fits and self._fit_logits(longest_scored * (count + 1))):
                break
            count += 1
        return count

    def _can_decode(self, held: Held) -> bool:
        rows = sum(held.rows.values())
        return held.positions <= self.max_batch_tokens and self._fit_logits(rows)

    def _fit_logits(self, rows: int) -> bool:
        return 4 * rows * self.target_vocab_size <= self.max_logits_bytes

    def _fits_a_pass(self, positions: int, delays: bool) -> bool:
        cost = self.pass_cost * (DELAY if delays else 1)
        return positions * cost <= self.max_pass_tokens


def apart(items: Sequence[Item], gated: Callable[[Item], bool]) -> list[list[Item]]:
    """Return the items that need no gates and those that do: a list of each, unless it is empty.

    They take passes of their own, so that a request without ablation never waits for one with it.
    """
    plain = [item for item in items if not gated(item)]
    others = [item for item in items if gated(item)]
    return [each for each in (plain, others) if each]


def by_length(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """Yield the jobs, longest sources first, in passes of similar lengths: a pass pads all sources
    to its longest. A new one begins where those left would get more padding than PASS."""
    ordered = sorted(jobs, key=lambda job: job.size.source, reverse=True)
    first = 0
    for i, job in enumerate(ordered):
        padding = ordered[first].size.source - job.size.source
        if padding * (len(ordered) - i) > PASS:
            yield ordered[first:i]
            first = i
    yield ordered[first:]
