"""An entry that breaks a pass fails alone, and a worker that dies takes only its own with it."""

import threading

import pytest
from structlog.testing import capture_logs

from service.engine.scheduler import Job
from service.errors import PassFailed, Unavailable
from service.runtime.cache import Cache
from service.wire import Status
from tests.service.engine.engines import (
    ONE_WORKER,
    SETTINGS,
    answers,
    assert_same,
    entry,
    put,
    running,
)

UNKNOWN_ID = 10**6  # no model has so many tokens: the encoder fails


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_bad_entry_fails_alone(tiny_bundle, every_weight, beam_size, threads):
    """Its neighbours get the answers that they get without it, with attention or not."""
    settings = SETTINGS.model_copy(update={"threads": threads})
    kinds = ({}, {"selection": every_weight(tiny_bundle)})

    def good():
        return [entry([4, 5 + i % 4], 9, beam_size, **kinds[i % 2]) for i in range(12)]

    with running(tiny_bundle, settings) as engine:
        expected = answers(engine, good())
        neighbours = good()
        jobs = put(engine, [*neighbours[:6], entry([UNKNOWN_ID], 9, beam_size), *neighbours[6:]])
        bad = jobs.pop(6)
        found = [one.result.result(60) for one in jobs]
        with pytest.raises(PassFailed):
            bad.result.result(60)
        assert engine.status == Status(ready=True, rows=0)
    assert_same(found, expected)


def test_entries_that_come_while_others_are_repeated_are_not_drawn_in(tiny_bundle):
    """The first three break their steps; those that come later never share a step with them."""
    with running(tiny_bundle, ONE_WORKER) as engine:
        expected = answers(engine, [entry([4, 5], 9)])
        bad, later, step = [Job(entry([6, 6], 9)) for _ in range(3)], [], engine.session.step
        unfinished = [*bad]

        def fail(cache, *arguments, **more):
            unfinished[:] = [each for each in bad if not each.result.done()]
            if unfinished and len(later) < 5:
                later.extend(put(engine, [entry([4, 5], 9)]))
            if unfinished:
                raise RuntimeError("a device was lost")
            return step(cache, *arguments, **more)

        engine.session.step = fail
        engine.queue.put(bad)
        assert {type(one.result.exception(60)) for one in bad} == {PassFailed}
        found = [one.result.result(60) for one in later]
    assert len(found) >= 3
    assert_same(found, expected * len(found))


SEARCHES = {
    "greedy": {},
    "beams": {"beam_size": 3, "num_hypotheses": 2},
    "samples": {"temperature": 1.0, "num_hypotheses": 2, "seed": 1},
    "draft": {"draft": (4, 5, 6, 7, 2)},
}


def streamed(engine, one, neighbours=()):
    """The answer to an entry that streams, and its progress."""
    seen = []
    job = Job(one, on_progress=seen.append)
    engine.queue.put([job, *map(Job, neighbours)])
    return job.result.result(60), seen


def flat(progress):
    """Tokens one by one, however many came at once; beams as they are."""
    return [each for one in progress for each in (one if isinstance(one, list) else [one])]


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize(("graph", "calls"), [("step", 1), ("step", 4), ("attention", 1)])
def test_an_entry_whose_progress_was_sent_gets_the_rest_of_it(
    tiny_bundle, every_weight, name, graph, calls
):
    """A pass fails once, after others. The client gets each token once, and the same answer."""
    graph = "draft_step" if (name, graph) == ("draft", "step") else graph
    wanted = entry([4, 5], 9, streams=True, selection=every_weight(tiny_bundle))
    wanted = wanted._replace(search=wanted.search._replace(**SEARCHES[name]))
    with running(tiny_bundle, ONE_WORKER) as engine:
        expected, progress = streamed(engine, wanted)
        compute, made = getattr(engine.session, graph), []

        def fail_once(*arguments, **more):
            made.append(graph)
            if len(made) == calls:
                raise RuntimeError("a device was lost")
            return compute(*arguments, **more)

        setattr(engine.session, graph, fail_once)
        found, seen = streamed(engine, wanted, [wanted._replace(streams=False)] * 2)
    assert len(made) > calls
    assert_same([found], [expected])
    assert flat(seen) == flat(progress)


def test_a_failed_pass_fails_its_entries_and_no_others(tiny_bundle):
    with running(tiny_bundle) as engine:
        step = engine.session.step

        def fail(*_, **__):
            raise RuntimeError("out of memory")

        engine.session.step = fail
        with pytest.raises(PassFailed, match="RuntimeError"):
            answers(engine, [entry([4, 5], max_new_tokens=3) for _ in range(3)])
        (encoded,) = answers(engine, [entry([4, 5])])
        engine.session.step = step
        (decoded,) = answers(engine, [entry([4, 5], max_new_tokens=3)])
        assert encoded.memory.shape == (2, 35)
        assert len(decoded.hypotheses[0].token_ids) == 3
        assert engine.status.ready


def test_a_join_that_fails_leaves_nothing_broken_behind(tiny_bundle, monkeypatch):
    """Here they fail by themselves, too; later entries do not."""

    with running(tiny_bundle, ONE_WORKER) as engine:
        begun, go_on = hold_steps(engine)
        (first,) = put(engine, [entry([4, 5], 20)])
        assert begun.wait(60)
        with monkeypatch.context() as broken:
            broken.setattr(Cache, "insert", out_of_memory)
            (second,) = put(engine, [entry([4, 5], 20)])
            go_on.set()
            outcomes = [one.result.exception(60) for one in (first, second)]
        assert {type(outcome) for outcome in outcomes} == {PassFailed}
        (answer,) = answers(engine, [entry([4, 5], 3)])
        assert len(answer.hypotheses[0].token_ids) == 3
        assert engine.status.rows == 0


def hold_steps(engine):
    """Let every step set the first event that is returned, then wait for the second."""
    step, begun, go_on = engine.session.step, threading.Event(), threading.Event()

    def held(*arguments, **more):
        begun.set()
        assert go_on.wait(60)
        return step(*arguments, **more)

    engine.session.step = held
    return begun, go_on


def out_of_memory(*_, **__):
    raise MemoryError


@pytest.mark.parametrize("stdout", ["full", "closed", "absent"])
def test_a_log_that_cannot_be_written_ends_no_worker(tiny_bundle, monkeypatch, stdout):
    with open("/dev/null", "w") as closed:
        pass
    with running(tiny_bundle, ONE_WORKER) as engine, open("/dev/full", "w", buffering=1) as full:
        streams = {"full": full, "closed": closed, "absent": None}
        monkeypatch.setattr("sys.stdout", streams[stdout])
        with pytest.raises(PassFailed):
            answers(engine, [entry([UNKNOWN_ID], 3)])
        (answer,) = answers(engine, [entry([4, 5], 3)])
        assert len(answer.hypotheses[0].token_ids) == 3


def test_a_failure_while_cancelled_rows_leave_ends_no_worker(tiny_bundle, monkeypatch):
    """Here the entry that stays also fails when it is repeated."""
    with running(tiny_bundle, ONE_WORKER) as engine:
        begun, go_on = hold_steps(engine)
        kept, cancelled = put(engine, [entry([4, 5], 20)] * 2)
        assert begun.wait(60)
        with monkeypatch.context() as broken:
            broken.setattr(Cache, "compact", out_of_memory)
            cancelled.result.cancel()
            go_on.set()
            with pytest.raises(PassFailed):
                kept.result.result(60)
        (answer,) = answers(engine, [entry([4, 5], 3)])
        assert len(answer.hypotheses[0].token_ids) == 3
        assert engine.status == Status(ready=True, rows=0)


def test_a_failed_pass_is_logged_with_its_model_and_requests(tiny_bundle):
    bad = [Job(entry([UNKNOWN_ID], 3), request_id=name) for name in ("two", "one", "two")]
    with capture_logs() as logged, running(tiny_bundle, ONE_WORKER) as engine:
        engine.queue.put(bad)
        assert {type(one.result.exception(60)) for one in bad} == {PassFailed}
    together, *alone = logged
    assert together["event"] == "pass failed"
    assert together["model"] == tiny_bundle.manifest.name
    assert (together["entries"], together["request_ids"]) == (3, ["one", "two"])
    assert sorted(line["request_ids"] for line in alone) == [["one"], ["two"], ["two"]]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dying_worker_fails_what_it_holds_and_is_not_ready(tiny_bundle, monkeypatch):
    """A pass fails, and the line that says so cannot be logged."""
    with running(tiny_bundle, ONE_WORKER) as engine:
        engine.session.step = out_of_memory
        begun, go_on = hold_steps(engine)
        monkeypatch.setattr("service.engine.worker.log_error", out_of_memory)
        jobs = put(engine, [entry([4, 5], 9), entry([4, 5], 9, beam_size=3)])  # two batches
        assert begun.wait(60)
        jobs += put(engine, [entry([4, 5], 9)] * 4)
        assert engine.status.ready
        go_on.set()
        outcomes = [type(one.result.exception(60)) for one in jobs]
        assert not engine.status.ready
        with pytest.raises(Unavailable):
            put(engine, [entry([4])])
    assert outcomes == [PassFailed, *[Unavailable] * 5]


def test_a_stalled_worker_is_not_ready(tiny_bundle, monkeypatch):
    with running(tiny_bundle) as engine:
        begun, go_on = hold_steps(engine)
        (one,) = put(engine, [entry([4], max_new_tokens=2)])
        assert begun.wait(60)
        assert engine.status.ready
        monkeypatch.setattr("service.engine.engine.STALLED_AFTER", 0.0)
        assert not engine.status.ready
        go_on.set()
        assert one.result.result(60)
