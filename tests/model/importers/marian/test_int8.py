"""Weights of 8 bits stay as Marian stored them."""

import numpy as np
import pytest
import torch

from model.export.files.weights import int8_rows, row_scales
from model.importers.checkpoint import Checkpoint
from model.importers.convert import read_model
from tests.model.importers.marian.folders import quantised, write_folder

BETWEEN = {"transformer-ffn-activation": "gelu"}  # whose factor goes into two matrices


@pytest.mark.parametrize("changes", [{}, BETWEEN], ids=["as stored", "with a factor"])
def test_integers_are_those_of_the_file(tmp_path, changes):
    chance = np.random.default_rng(3)
    _, tensors = write_folder(tmp_path / "model", container="int8", **changes)
    model = read_model(Checkpoint(tmp_path / "model"))
    layer = model.encoder.layers[1]
    matrices = {
        "encoder_l2_self_Wq": layer.self_attention.query.weight,
        "encoder_l2_ffn_W1": layer.feed_forward.up.weight,
        "encoder_l2_ffn_W2": layer.feed_forward.down.weight,
        "Wemb": model.generator.weight,
    }
    for name, matrix in matrices.items():
        units, _ = quantised(tensors[name])
        stored = units if name == "Wemb" else units.T
        (found,), (scales,) = list(int8_rows(matrix)), list(row_scales(matrix))
        np.testing.assert_array_equal(found[: len(stored)], stored, err_msg=name)
        assert len({*scales.tolist()}) == 1
        assert not found[len(stored) :].any()  # the row of the start
    other = torch.from_numpy(chance.normal(size=(8, 16)).astype(np.float32))
    (scales,) = row_scales(other)
    np.testing.assert_allclose(scales, other.abs().amax(1) / 127)
