"""Write a new bundle in a folder next to the old one, and then swap the two."""

import ctypes
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

HELD = "held"  # the file that an export locks: a second one in its folder may lock the folder


@contextmanager
def replacement(bundle: Path) -> Generator[Path]:
    """Give an empty folder, and put it in the bundle's place once the block ends without error.

    Until then the old bundle stays. Folders that killed exports left behind are removed.
    """
    bundle.parent.mkdir(parents=True, exist_ok=True)
    with locked(bundle.parent):  # so that no other export removes the folder before it is held
        remove_rests(bundle)
        work = Path(tempfile.mkdtemp(prefix=f".{bundle.name}-", dir=bundle.parent))
        lock = os.open(work / HELD, os.O_CREAT | os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX)  # held as long as this process lives
    try:
        new = work / "new"
        new.mkdir()
        yield new
        swap(new, bundle, work / "old")
    finally:
        with locked(bundle.parent):
            shutil.rmtree(work)
        os.close(lock)


@contextmanager
def changed(bundle: Path) -> Generator[Path]:
    """Give a folder with the same files, and put it in the bundle's place once the block ends
    without error. The files are those of the bundle: replace one to change it, do not write it."""
    bundle = bundle.resolve()  # else a link to it would be replaced
    with replacement(bundle) as new:
        shutil.copytree(bundle, new, symlinks=True, copy_function=link, dirs_exist_ok=True)
        yield new


def link(file: str, other: str) -> None:
    """Give a file a second name or, where the file system has none, copy it."""
    try:
        os.link(file, other)
    except OSError:
        shutil.copy2(file, other)


def swap(new: Path, bundle: Path, old: Path) -> None:
    """Put `new` in the bundle's place; if that fails, the old bundle stays."""
    if exchange(new, bundle):
        return
    if bundle.exists():
        bundle.rename(old)
    try:
        new.rename(bundle)
    except OSError:
        if old.exists():
            old.rename(bundle)
        raise


def exchange(one: Path, other: Path) -> bool:
    """Let two folders change their names at once. Return False if the system or its file system
    cannot, or if one is missing."""
    here, exchanging = -100, 2  # AT_FDCWD, RENAME_EXCHANGE: rename(2) of Linux
    try:
        rename = ctypes.CDLL(None).renameat2
    except AttributeError:
        return False
    return rename(here, os.fsencode(one), here, os.fsencode(other), exchanging) == 0


@contextmanager
def locked(folder: Path) -> Generator[None]:
    """Hold the lock of a folder, once no other process does."""
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def remove_rests(bundle: Path) -> None:
    """Remove work folders of this bundle that no living process holds.

    One that was killed between two renames of `swap` holds the old bundle, which is put back.
    """
    pattern = rf"\.{re.escape(bundle.name)}-[a-z0-9_]{{8}}"  # as mkdtemp names them
    for work in [*bundle.parent.iterdir()]:
        if re.fullmatch(pattern, work.name) and work.is_dir() and is_free(work):
            if (work / "old").exists() and not bundle.exists():
                (work / "old").rename(bundle)
            shutil.rmtree(work)


def is_free(work: Path) -> bool:
    try:
        lock = os.open(work / HELD, os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
