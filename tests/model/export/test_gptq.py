"""GPTQ rounds a matrix so that its products with like inputs change least."""

import numpy as np
import pytest
import torch

from model.export.files.weights import int8_rows, scales_of
from model.export.precision.gptq import BLOCK, DAMPING, gptq

WIDTHS = [3, BLOCK, BLOCK + 37, 2 * BLOCK + 1]


def inputs_of(random, rows, width, rank):
    """Inputs that are mixtures of a few others, of different sizes, and a little of their own."""
    mixed = random.normal(size=(rows, rank)) @ random.normal(size=(rank, width))
    own = 0.1 * random.normal(size=(rows, width))
    return ((mixed + own) * random.uniform(0.2, 5, width)).astype(np.float32)


def one_by_one(weight, inputs):
    """Optimal brain quantization of Frantar & Alistarh (2022), of all rows in one order: after each
    column, the step that undoes its error best, by the inverse without that column."""
    products = inputs.astype(np.float64).T @ inputs
    order = np.argsort(-np.diag(products))
    inverse = np.linalg.inv(products + DAMPING * np.diag(products).mean() * np.eye(len(products)))
    scale = np.abs(weight).max(1) / 127
    rest = weight.astype(np.float64) / scale[:, None]
    units = np.zeros_like(rest)
    for i in order:
        units[:, i] = np.clip(np.round(rest[:, i]), -127, 127)
        error = (rest[:, i] - units[:, i]) / inverse[i, i]
        rest -= np.outer(error, inverse[i])
        inverse -= np.outer(inverse[:, i], inverse[i]) / inverse[i, i]
    return units


def change(weight, units, inputs):
    """The mean square of what rounding changes in the products."""
    scales = np.abs(weight).max(1, keepdims=True) / 127
    return np.square(inputs @ (units * scales - weight).T).mean()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", [20, 600], ids=["fewer inputs than columns", "more"])
def test_it_rounds_as_columns_taken_one_by_one(width, rows):
    random = np.random.default_rng(width + rows)
    weight = random.normal(size=(40, width)).astype(np.float32)
    inputs = inputs_of(random, rows, width, 6)
    found = gptq(torch.from_numpy(weight), torch.from_numpy(inputs)).numpy()
    expected = one_by_one(weight, inputs)
    # float32 here and float64 there: what lies between two whole numbers may go to either
    assert (found == expected).mean() > 0.95
    assert change(weight, found, inputs) < 1.1 * change(weight, expected, inputs)


@pytest.mark.parametrize("width", WIDTHS)
def test_products_change_less_than_with_the_nearest_numbers(width):
    """With inputs that calibration has not seen, too."""
    random = np.random.default_rng(width)
    weight = random.normal(size=(40, width)).astype(np.float32)
    seen, unseen = np.split(inputs_of(random, 1200, width, 2), 2)
    found = gptq(torch.from_numpy(weight), torch.from_numpy(seen)).numpy()
    (nearest,) = int8_rows(torch.from_numpy(weight))
    for inputs in (seen, unseen):
        assert change(weight, found, inputs) < 0.6 * change(weight, nearest.numpy(), inputs)


def test_inputs_that_are_not_alike_leave_the_nearest_numbers():
    weight = torch.from_numpy(np.random.default_rng(0).normal(size=(40, 9)).astype(np.float32))
    (nearest,) = int8_rows(weight)
    for inputs in (torch.diag(torch.arange(1.0, 10.0)), torch.zeros(5, 9)):
        assert torch.equal(gptq(weight, inputs), nearest)


def test_a_matrix_that_was_int8_stays_as_it_was():
    """And rows of zeros stay zeros."""
    random = np.random.default_rng(0)
    whole = torch.from_numpy(random.integers(-127, 128, (30, 50)).astype(np.int8))
    whole[3], whole[4, 0] = 0, 127
    weight = whole * 0.03125
    inputs = torch.from_numpy(inputs_of(random, 100, 50, 4))
    assert scales_of(weight).unique().tolist() == [0.03125]
    assert torch.equal(gptq(weight, inputs), whole)
    other = torch.from_numpy(random.normal(size=(30, 50)).astype(np.float32))
    other[3] = 0
    assert not gptq(other, inputs)[3].any()


def test_a_row_is_rounded_as_it_is_alone(monkeypatch):
    """Large matrices are rounded piece by piece."""
    random = np.random.default_rng(0)
    weight = torch.from_numpy(random.normal(size=(11, 20)).astype(np.float32))
    inputs = torch.from_numpy(inputs_of(random, 100, 20, 4))
    whole = gptq(weight, inputs)
    monkeypatch.setattr("model.export.files.tensor_file.PIECE", 60)
    assert (gptq(weight, inputs) == whole).float().mean() > 0.98  # sums in another order


@pytest.mark.parametrize("outlier", [1.0, 1e4])
def test_few_inputs_that_are_all_alike_are_enough(outlier):
    """Most directions of 700 columns are not in 40 inputs, which hardly differ."""
    random = np.random.default_rng(0)
    weight = random.normal(size=(20, 700)).astype(np.float32)
    inputs = (100 + 1e-3 * random.normal(size=(40, 700))).astype(np.float32)
    inputs[:, 5] *= outlier
    found = gptq(torch.from_numpy(weight), torch.from_numpy(inputs)).numpy()
    (nearest,) = int8_rows(torch.from_numpy(weight))
    assert change(weight, found, inputs) < 0.5 * change(weight, nearest.numpy(), inputs)
