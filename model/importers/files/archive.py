"""Unpack a zip of a model, as OPUS-MT offers them, into a folder for the time of a conversion."""

import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from errno import ENOSPC
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile, ZipInfo

from model.importers.files.npz_file import DAMAGED, check_sizes, damaged
from model.network.config import InputError

SUFFIXES = (".npz", ".bin", ".gz", ".spm", ".yml", ".md", ".fsv")  # of files that may be read
WEIGHTS = (".npz", ".bin", ".bin.gz")
TEXTS = ("LICEN", "NOTICE", "README")


@contextmanager
def unpacked(path: Path) -> Generator[Path]:
    """Yield a folder with the files of a zip; `path` itself if it is not one.

    Names in the archive choose no place: each file gets the last part of its name. Raise InputError
    if the archive is damaged, far larger than its file, or without weights. An InputError of the
    caller's about the folder names the archive instead.
    """
    if not (path.suffix.lower() == ".zip" and path.is_file()):
        yield path
        return
    with TemporaryDirectory(prefix="heed-") as temporary:
        folder = Path(temporary) / path.stem
        folder.mkdir()
        try:
            with ZipFile(path) as archive:
                check_sizes(path, archive.infolist())
                for name, info in wanted(path, archive.infolist()):
                    with archive.open(info) as packed, (folder / name).open("xb") as file:
                        shutil.copyfileobj(packed, file)
        except DAMAGED as error:
            if isinstance(error, OSError) and error.errno == ENOSPC:
                raise InputError(
                    f"{temporary} has no room for what {path} holds: set TMPDIR to a larger disk"
                ) from error
            raise damaged(path, error) from error
        if not any(each.name.endswith(WEIGHTS) for each in folder.iterdir()):
            raise InputError(
                f"{path} has no weights of Marian, {' or '.join(f'*{each}' for each in WEIGHTS)}:"
                " unpack a checkpoint of another program, and give its folder"
            )
        try:
            yield folder
        except InputError as error:  # the folder is gone when its user reads of it
            raise InputError(str(error).replace(str(folder), str(path))) from error


def wanted(path: Path, infos: list[ZipInfo]) -> Iterator[tuple[str, ZipInfo]]:
    """Yield the files that may be read, each with the last part of its name. Raise InputError if
    two have the same."""
    seen: set[str] = set()
    for info in infos:
        name = info.filename.replace("\\", "/").rpartition("/")[2]
        if not name.endswith(SUFFIXES) and not name.startswith(TEXTS):
            continue
        if name in seen:
            raise InputError(
                f"{path} has {name[:60]!r} in two of its folders: unpack it, and give the folder of"
                " one model"
            )
        seen.add(name)
        yield name, info
