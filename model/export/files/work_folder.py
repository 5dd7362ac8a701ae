"""Write a new bundle in a folder next to the old one, and then swap the two."""

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacement(bundle: Path) -> Generator[Path]:
    """Give an empty folder, and put it in the bundle's place once the block ends without error.

    Until then the old bundle stays. Folders that killed exports left behind are removed.
    """
    bundle.parent.mkdir(parents=True, exist_ok=True)
    remove_rests(bundle)
    work = Path(tempfile.mkdtemp(prefix=f".{bundle.name}-", dir=bundle.parent))
    lock = os.open(work, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # held as long as this process lives
        new = work / "new"
        new.mkdir()
        yield new
        swap(new, bundle, work / "old")
    finally:
        os.close(lock)
        shutil.rmtree(work)


def swap(new: Path, bundle: Path, old: Path) -> None:
    """Put `new` in the bundle's place; if that fails, the old bundle stays."""
    if bundle.exists():
        bundle.rename(old)
    try:
        new.rename(bundle)
    except OSError:
        if old.exists():
            old.rename(bundle)
        raise


def remove_rests(bundle: Path) -> None:
    """Remove work folders of this bundle that no living process holds.

    One that was killed between the two renames of `swap` holds the old bundle, which is put back.
    """
    pattern = rf"\.{re.escape(bundle.name)}-[a-z0-9_]{{8}}"  # as mkdtemp names them
    for work in [*bundle.parent.iterdir()]:
        if re.fullmatch(pattern, work.name) and work.is_dir() and is_free(work):
            if (work / "old").exists() and not bundle.exists():
                (work / "old").rename(bundle)
            shutil.rmtree(work)


def is_free(folder: Path) -> bool:
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
