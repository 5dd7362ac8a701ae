"""A broken bundle is refused in one line, or it answers exactly as the intact one does."""

import asyncio
import multiprocessing
import re
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from service.bundle.manifest import load_bundle
from service.engine.opening import open_engine
from service.engine.scheduler import Job
from service.errors import PassFailed, StartupError
from service.logs import configure_logs
from service.search.options import SearchOptions
from service.serving.client import EngineClient
from service.settings.settings import Provider, Settings
from service.text.opening import open_tokenizers
from service.wire import Entry
from tests.service.mutations.edit import seal
from tests.service.mutations.every import GREEDY, RAW, SEALED
from tests.service.processes import children_of, run_python

SETTINGS = Settings(provider=Provider.cpu, threads=1)
TEXTS = ["red green blue", "two", "three one two red blue green"]
# The graphs of attention and scores are compared with torch when a request first needs them.
NOTICED_WHEN_USED = {"NaN in the scores", "NaN in the attention", "other attention"}
SERVED = {
    *("task with escapes", "prefix leaves one", "metadata", "a short Loop", "endless padding"),
    *("truncation", "no task", "no licence", "no attribution", *NOTICED_WHEN_USED),
}
OPENING = """
import resource, sys
from pathlib import Path
from service.bundle.manifest import load_bundle
from service.engine.opening import open_engine
from service.settings.settings import Settings

def say_limits():
    kinds = resource.RLIMIT_CPU, resource.RLIMIT_CORE, resource.RLIMIT_DATA
    print(*(resource.getrlimit(kind)[0] for kind in kinds), sep=",")

hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
say_limits()
open_engine(load_bundle(Path(sys.argv[1])), Settings(provider="cpu"))
say_limits()
"""
LONGEST = 500  # characters of a refusal
MOST_MEMORY = 500 << 20  # bytes


def answers_of(folder, every_weight):
    """Return what a bundle decodes, encodes, scores and attends to, with errors in their places,
    and the text of some ids.

    A bundle that loops for ever would end pytest by SIGXCPU here: it belongs to GREEDY.
    """
    bundle = load_bundle(folder)
    engine = open_engine(bundle, SETTINGS)
    source, target = open_tokenizers(bundle)
    search = SearchOptions(max_new_tokens=9, beam_size=2, num_hypotheses=2)
    asked = []
    for text in TEXTS:
        ids = np.array(source.encode(text, "/").ids)
        asked += [Entry(ids, search), Entry(ids), Entry(ids, None, [5, 6, 2], scores=True)]
        asked.append(Entry(ids, None, [5, 6, 2], every_weight(bundle)))
    engine.start()
    engine.queue.put(jobs := [*map(Job, asked)])
    engine.close()
    outcomes = [job.result.exception(0) or job.result.result(0) for job in jobs]
    return [[*map(numbers_of, outcomes)], target.decode([5, 6]).text]


def numbers_of(outcome):
    if isinstance(outcome, PassFailed):
        return outcome
    weights = [array for kinds in outcome.attention for _, array in sorted(kinds.items())]
    arrays = [outcome.memory, outcome.log_probs, *weights]
    hypotheses = [(each.token_ids, each.score) for each in outcome.hypotheses]
    return hypotheses, [array.tolist() for array in arrays if array is not None]


@pytest.fixture(scope="module")
def intact(tiny, every_weight):
    configure_logs("json")  # else tracebacks take seconds to print
    return answers_of(tiny, every_weight)


@pytest.fixture
def copy(tiny, tmp_path):
    return shutil.copytree(tiny, tmp_path / "bundle")


def check_refusal(refusal, folder):
    """A refusal is one line that a terminal shows as it is, and names a file or the folder."""
    assert refusal.isprintable()
    assert len(refusal) < LONGEST
    assert str(folder) in refusal


def check(folder, name, intact, every_weight):
    if name not in SERVED:
        with pytest.raises(StartupError) as error:
            answers_of(folder, every_weight)
        check_refusal(str(error.value), folder)
        return
    (answers, text), (expected, expected_text) = answers_of(folder, every_weight), intact
    failed = [each for each in answers if isinstance(each, PassFailed)]
    kept = [each for each in zip(answers, expected, strict=True) if each[0] not in failed]
    assert all(found == wanted for found, wanted in kept)
    assert text == expected_text
    assert len(failed) == (len(TEXTS) if name in NOTICED_WHEN_USED else 0)
    assert all(str(each).isprintable() for each in failed)


@pytest.mark.parametrize("name", RAW)
def test_a_damaged_manifest_or_file(copy, intact, every_weight, name, capfd):
    RAW[name](copy)
    check(copy, name, intact, every_weight)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", SEALED)
def test_a_damaged_file_that_bundle_json_vouches_for(copy, intact, every_weight, name, capfd):
    SEALED[name](copy)
    seal(copy)
    check(copy, name, intact, every_weight)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", GREEDY)
def test_time_and_memory_of_opening_are_bounded(copy, name, capfd):
    """By ending the process that opens the bundle."""
    GREEDY[name](copy)
    seal(copy)
    settings = SETTINGS.model_copy(update={"opening_timeout": 600.0})
    client = EngineClient(load_bundle(copy), settings)
    with pytest.raises(StartupError) as error:
        asyncio.run(open_and_watch(client))
    check_refusal(str(error.value), copy)
    assert "600 seconds" not in str(error.value)  # another limit ended it earlier
    assert ("CPU time" in str(error.value)) == (name == "an endless Loop")
    assert capfd.readouterr() == ("", "")


def test_opening_restores_the_limits_of_the_process(tiny):
    """In a process of its own: limits that an earlier test left would hide those of this one."""
    before, after = run_python("-c", OPENING, str(tiny), check=True).stdout.split()
    assert before == after != "0,0,0"


async def open_and_watch(client):
    """Start and close an engine; assert that its process never holds much memory."""
    here = multiprocessing.current_process()
    before = {*children_of(here)}
    starting = asyncio.create_task(client.start())
    try:
        while not starting.done():
            await asyncio.wait([starting], timeout=0.01)
            assert all(held_by(pid) < MOST_MEMORY for pid in {*children_of(here)} - before)
        await starting
    finally:
        await client.close()


def held_by(pid):
    """Bytes that a process has ever held; 0 if it has ended."""
    with suppress(OSError, TypeError):
        status = Path(f"/proc/{pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) << 10
    return 0


@pytest.mark.parametrize(
    "name",
    [
        "step cut",
        *(
            pytest.param(each, marks=pytest.mark.long)
            for each in ("NaN in memory", "broken charsmap", "nan in generator.weight", *GREEDY)
        ),
    ],
)
def test_the_command_says_one_line(copy, name):
    {**SEALED, **GREEDY}[name](copy)
    seal(copy)
    ended = run_python("-m", "service", "--bundles", str(copy), "--port", "0")
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.startswith("heed: ")
    check_refusal(ended.stderr.removesuffix("\n"), copy)
