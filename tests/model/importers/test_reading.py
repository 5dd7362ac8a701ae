"""A conversion reads the numbers of a checkpoint once."""

from collections import Counter

import pytest
import safetensors
from safetensors.torch import save_file

from model.export.files.manifest import Precision
from model.importers.convert import Options, convert
from tests.model.importers.checkpoints import write_bart
from tests.model.importers.marian import folders as marian
from tests.model.importers.plain_models import SOURCES, TARGETS, translator, write


class Read(Exception):
    """The network was read."""


def write_plain(folder):
    """Write a model whose sides share one table of positions."""
    theirs, keys = translator(29, positions="buffer")
    state = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    save_file(state, folder / "model.safetensors")
    files = {"source_vocabulary": SOURCES, "target_vocabulary": TARGETS}
    for name, rows in files.items():
        (folder / name).write_text("\n".join(["<unk>", *(f"word{i}" for i in range(1, rows))]))
    write(folder, **keys, **dict(zip(files, files, strict=True)))


def read(folder):
    """Convert a folder up to the stage after its network is read."""

    stages = []

    def progress(stage):
        stages.append(stage)
        if stage.startswith("decoding texts"):
            raise Read

    options = Options(
        name="x",
        licence="CC0-1.0",
        examples=[],
        max_length=None,
        precision=Precision.fp32,
        weights=None,
        texts=folder / "texts",
    )
    (folder / "texts").write_text("a\n")
    with pytest.raises(Read):
        convert(folder, folder / "bundle", options, progress)
    return stages


@pytest.mark.parametrize(
    ("write_folder", "compared"),
    [(write_bart, []), (write_plain, ["words_in.weight", "words_out.weight", "project.weight"])],
)
def test_each_tensor_is_read_once_but_for_matrices_that_may_be_tied(
    tmp_path, monkeypatch, write_folder, compared
):
    """They are compared before, because the number of weights depends on it."""
    counts = Counter()

    class Counting:
        def __init__(self, *options):
            self._file = safetensors.safe_open(*options)

        def get_tensor(self, name):
            counts[name] += 1
            return self._file.get_tensor(name)

        def __getattr__(self, name):
            return getattr(self._file, name)

    write_folder(tmp_path)
    monkeypatch.setattr("model.importers.checkpoint.safe_open", Counting)
    read(tmp_path)
    names = safetensors.safe_open(tmp_path / "model.safetensors", "pt").keys()
    assert counts == {name: 2 if name in compared else 1 for name in names}


def write_marian(folder):
    marian.write_folder(folder, **{"enc-depth": 1, "dec-depth": 1})


@pytest.mark.parametrize(
    ("write_folder", "compares"), [(write_bart, True), (write_marian, False), (write_plain, False)]
)
def test_a_comparison_with_hugging_face_is_told_only_where_there_is_one(
    tmp_path, write_folder, compares
):
    write_folder(tmp_path)
    assert ("comparing the network with Hugging Face's" in read(tmp_path)) == compares
