"""A pass or a worker that fails takes its own entries with it, and no others."""

import threading

import pytest

from service.engine.messages import Status
from service.engine.worker import Worker
from service.errors import PassFailed, Unavailable
from service.runtime.cache import Cache
from tests.service.engine.test_engine import ONE_WORKER, answers, entry, running

UNKNOWN_ID = 10**6  # no model has so many tokens: the encoder fails


def test_a_failed_pass_fails_its_entries_and_no_others(tiny_bundle):
    with running(tiny_bundle) as engine:
        step = engine.session.step

        def fail(*_):
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
    """Its neighbours fail too, because their memory may be damaged; later entries do not."""

    with running(tiny_bundle, ONE_WORKER) as engine:
        begun, go_on = hold_steps(engine)
        engine.queue.put([first := entry([4, 5], 20)])
        assert begun.wait(10)
        with monkeypatch.context() as broken:
            broken.setattr(Cache, "_make_room", out_of_memory)
            engine.queue.put([second := entry([4, 5], 20)])
            go_on.set()
            outcomes = [one.result.exception(60) for one in (first, second)]
        assert {type(outcome) for outcome in outcomes} == {PassFailed}
        (answer,) = answers(engine, [entry([4, 5], 3)])
        assert len(answer.hypotheses[0].token_ids) == 3
        assert engine.status.rows == 0


def hold_steps(engine):
    """Let every step set the first event that is returned, then wait for the second."""
    step, begun, go_on = engine.session.step, threading.Event(), threading.Event()

    def held(*arguments):
        begun.set()
        assert go_on.wait(10)
        return step(*arguments)

    engine.session.step = held
    return begun, go_on


def out_of_memory(*_):
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
    """The rows beside them fail, because their memory may be damaged."""
    with running(tiny_bundle, ONE_WORKER) as engine:
        begun, go_on = hold_steps(engine)
        engine.queue.put([kept := entry([4, 5], 20), cancelled := entry([4, 5], 20)])
        assert begun.wait(10)
        with monkeypatch.context() as broken:
            broken.setattr(Cache, "compact", out_of_memory)
            cancelled.result.cancel()
            go_on.set()
            with pytest.raises(PassFailed):
                kept.result.result(60)
        (answer,) = answers(engine, [entry([4, 5], 3)])
        assert len(answer.hypotheses[0].token_ids) == 3
        assert engine.status == Status(ready=True, rows=0)


def test_a_failed_pass_is_logged_with_its_model_and_entries(tiny_bundle, capsys):
    with running(tiny_bundle, ONE_WORKER) as engine, pytest.raises(PassFailed):
        answers(engine, [entry([UNKNOWN_ID], 3)])
    said = capsys.readouterr().out
    assert "pass failed" in said
    assert f"model={tiny_bundle.manifest.name}" in said
    assert "entries=1" in said


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dying_worker_fails_what_it_holds_and_is_not_ready(tiny_bundle, monkeypatch):
    """An error in the guard itself ends the worker."""

    with running(tiny_bundle) as engine:

        def fail(*_):
            raise MemoryError

        engine.session.step = fail
        monkeypatch.setattr(Worker, "_guard", fail)
        entries = [entry([4, 5], max_new_tokens=9) for _ in range(5)]
        assert engine.status.ready
        engine.queue.put(entries)
        outcomes = [one.result.exception(60) for one in entries]
        assert not engine.status.ready
        with pytest.raises(Unavailable):
            engine.queue.put([entry([4])])
    assert {type(outcome) for outcome in outcomes} <= {PassFailed, Unavailable}


def test_a_stalled_worker_is_not_ready(tiny_bundle, monkeypatch):
    with running(tiny_bundle) as engine:
        started, go_on = threading.Event(), threading.Event()
        encode = engine.session.encode

        def slow(sources):
            started.set()
            go_on.wait(10)
            return encode(sources)

        engine.session.encode = slow
        engine.queue.put([one := entry([4], max_new_tokens=2)])
        assert started.wait(10)
        assert engine.status.ready
        monkeypatch.setattr("service.engine.engine.STALLED_AFTER", 0.0)
        assert not engine.status.ready
        go_on.set()
        assert one.result.result(60)
