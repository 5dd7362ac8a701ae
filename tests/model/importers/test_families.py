"""Random checkpoints of Hugging Face's own classes give our network the same numbers."""

import pytest

from model.network.config import Tied
from tests.model.importers.checkpoints import SHAPES
from tests.model.importers.random_models import (
    BART,
    T5,
    assert_same_numbers,
    random_model,
    read,
    save,
)

SEEDS = [*range(2), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 20))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", [*BART, *T5])
def test_log_probs_and_attention_are_those_of_hugging_face(tmp_path, family, seed):
    theirs = random_model(family, seed)
    save(theirs, tmp_path, SHAPES[seed % 3])
    ours = read(tmp_path)
    assert_same_numbers(ours, theirs, [7, 2, 12], [5, 9, 1], seed)
    longest = min(31, ours.config.max_source_length)
    assert_same_numbers(
        ours, theirs, [longest + 1, 3], [2, longest + 1], seed
    )  # the last positions


def test_files_may_be_links_as_in_the_cache_of_hugging_face(tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    theirs = random_model("bart", 0)
    save(theirs, blobs, "shards")
    snapshot.mkdir()
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(path)
    assert_same_numbers(read(snapshot), theirs, [3, 2], [2, 4])


@pytest.mark.parametrize("longest", [20, 128])
@pytest.mark.parametrize("family", T5)
def test_distances_beyond_the_longest_have_its_bias(tmp_path, family, longest):
    theirs = random_model(family, 0, relative_attention_max_distance=longest)
    save(theirs, tmp_path, "safetensors")
    assert_same_numbers(read(tmp_path), theirs, [300, 150], [140, 300])


@pytest.mark.parametrize(
    ("family", "tied"),
    [
        ("bart", Tied.all),
        ("marian of two vocabularies", Tied.target),
        ("t5", Tied.all),
        ("t5 1.1", Tied.embeddings),
    ],
)
def test_matrices_are_tied_as_the_file_holds_them(tmp_path, family, tied):
    save(random_model(family, 0), tmp_path, "safetensors")
    assert read(tmp_path).config.tied is tied
