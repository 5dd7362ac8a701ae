"""An export that fails or is killed leaves the old bundle and, after the next one, no rest."""

import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from model.export.files.work_folder import changed, remove_rests, replacement

REPOSITORY = Path(__file__).parent.parent.parent.parent
EXPORT = """
import resource, signal, sys
from pathlib import Path
from model.checkpoint import load_model
from model.export import bundle as module
from model.export.files.manifest import Card
from model.network.config import InputError

def wait(*_):
    print("exporting", flush=True)
    signal.pause()

def fill(*_):  # as a full disk does: the write fails after some bytes
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
    return ()

trained = load_model(Path(sys.argv[1]))
module.export_graphs = wait if sys.argv[3] == "wait" else fill
card = Card(name="x", task="t", licence="CC0-1.0", attribution="-", notice="-" * 9999)
try:
    module.write_bundle(trained, card, module.WeightType.fp32, Path(sys.argv[2]))
except InputError as error:
    sys.exit(str(error))
"""


@pytest.fixture
def bundle(tmp_path):
    folder = tmp_path / "kept"
    folder.mkdir()
    (folder / "bundle.json").write_text("old")
    return folder


def start(tiny, bundle, how):
    command = [sys.executable, "-c", EXPORT, tiny, bundle, how]
    return subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def names_beside(bundle):
    return sorted(path.name for path in bundle.parent.iterdir())


def test_a_killed_export_leaves_the_old_bundle_and_the_next_removes_the_rest(tiny, bundle):
    with start(tiny, bundle, "wait") as export:
        assert export.stdout.readline() == "exporting\n"
        while_running = names_beside(bundle)
        with replacement(bundle) as new:  # the rest of a living export is none
            (new / "bundle.json").write_text("new")
        assert names_beside(bundle) == while_running
        export.kill()
        assert export.wait() == -signal.SIGKILL
    assert (bundle / "bundle.json").read_text() == "new"
    assert len(names_beside(bundle)) == 2
    with replacement(bundle) as new:
        (new / "bundle.json").write_text("newer")
    assert names_beside(bundle) == ["kept"]
    assert (bundle / "bundle.json").read_text() == "newer"


def test_an_export_that_begins_at_the_same_moment_leaves_the_other_its_folder(bundle, monkeypatch):
    make, other = tempfile.mkdtemp, []

    def export():
        with replacement(bundle) as new:
            (new / "bundle.json").write_text("other")

    def make_and_wait(**given):
        """Let another export begin before the folder is held."""
        folder = make(**given)
        if not other:
            other.append(threading.Thread(target=export))
            other[0].start()
            other[0].join(0.5)
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_wait)
    with replacement(bundle) as new:
        (new / "bundle.json").write_text("new")
    other[0].join()
    assert names_beside(bundle) == ["kept"]
    assert (bundle / "bundle.json").read_text() in ("new", "other")


def test_a_new_bundle_is_changed_before_it_takes_its_place(bundle):
    with replacement(bundle) as new:
        (new / "bundle.json").write_text("new")
        with changed(new) as altered:
            (altered / "card").write_text("a card")
    assert sorted(path.name for path in bundle.iterdir()) == ["bundle.json", "card"]
    assert names_beside(bundle) == ["kept"]


@pytest.mark.parametrize("room", ["100", "4096"])  # too little for a tokenizer, and for NOTICE
def test_a_full_disk_leaves_the_old_bundle_and_says_so(tiny, bundle, room):
    with start(tiny, bundle, room) as export:
        _, errors = export.communicate()
    assert errors == (
        f"{bundle} cannot be written: File too large; an older bundle stays as it was:"
        " make room, or name another folder\n"
    )
    assert (bundle / "bundle.json").read_text() == "old"
    assert names_beside(bundle) == ["kept"]


def test_a_bundle_moved_away_by_a_killed_export_comes_back(bundle):
    work = bundle.parent / ".kept-abcd_123"
    work.mkdir()
    bundle.rename(work / "old")
    other = bundle.parent / ".kept-too-abcd_123"  # of a bundle named kept-too
    other.mkdir()
    remove_rests(bundle)
    assert names_beside(bundle) == [other.name, "kept"]
    assert (bundle / "bundle.json").read_text() == "old"
