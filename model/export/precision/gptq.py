"""Round a matrix to int8 so that its products change least, and not its own numbers.

Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers"
(2022). Axes: N rows of a matrix, which are the outputs of a product, and K columns, which are its
inputs; R rows of inputs.
"""

import torch
from torch import Tensor

from model.export.files.tensor_file import pieces_of
from model.export.files.weights import row_scales

DAMPING = 0.01  # of the mean square of an input, added to each: sample texts are few
BLOCK = 128  # columns whose errors reach the columns after them together


def gptq(weight: Tensor, inputs: Tensor) -> Tensor:
    """Return int8 (N, K) of a matrix (N, K), in units of its rows' scales, for `inputs` (R, K).

    The columns are rounded one after the other, those with large inputs first. What rounding one
    changes in the outputs, the columns after it make up for, as far as their inputs are alike.
    """
    products = inputs.T @ inputs  # (K, K)
    order = products.diagonal().argsort(descending=True)
    shares = shares_of(products[order][:, order])
    units = torch.empty(weight.shape, dtype=torch.int8)
    done = 0
    for rows, scales in zip(pieces_of(weight), row_scales(weight), strict=True):
        columns = torch.where(scales > 0, rows.float().T / scales, 0.0)  # (K, N)
        units[done : done + len(rows), order] = round_columns(columns[order], shares).T
        done += len(rows)
    return units


def shares_of(products: Tensor) -> Tensor:
    """Return (K, K): in row i, the share of the error of column i that each column after it takes
    over, times the number on the diagonal. It is the upper Cholesky factor of the inverse."""
    added = DAMPING * products.diagonal().mean().item() or 1.0
    inverse = torch.cholesky_inverse(
        torch.linalg.cholesky(products + added * torch.eye(len(products)))
    )
    return torch.linalg.cholesky(inverse, upper=True)


def round_columns(columns: Tensor, shares: Tensor) -> Tensor:
    """Return int8 of columns (K, N) in units. Overwrites the columns."""
    units = torch.empty_like(columns, dtype=torch.int8)
    for first in range(0, len(columns), BLOCK):
        last = min(first + BLOCK, len(columns))
        errors = torch.empty_like(columns[first:last])
        for i in range(first, last):
            whole = columns[i].round().clamp(-127, 127)
            units[i] = whole
            errors[i - first] = error = (columns[i] - whole) / shares[i, i]
            columns[i:last] -= shares[i, i:last].unsqueeze(1) * error
        columns[last:] -= shares[first:last, last:].T @ errors
    return units
