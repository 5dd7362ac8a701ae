"""Round a matrix to int8 so that its products change least: GPTQ.

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


@torch.no_grad()
def gptq(weight: Tensor, inputs: Tensor) -> Tensor:
    """Return int8 (N, K) of a matrix (N, K), in units of its rows' scales, for `inputs` (R, K).

    The columns are rounded one after the other, those with large inputs first. The columns that are
    not rounded yet make up for the error of each, as far as their inputs are alike.
    """
    products = inputs.T @ inputs  # (K, K)
    order = products.diagonal().argsort(descending=True)
    factor = inverse_factor(products[order][:, order])
    units = torch.empty(weight.shape, dtype=torch.int8)
    done = 0
    for rows, scales in zip(pieces_of(weight), row_scales(weight), strict=True):
        columns = torch.where(scales > 0, rows.float().T / scales, 0.0)  # (K, N)
        units[done : done + len(rows), order] = round_columns(columns[order], factor).T
        done += len(rows)
    return units


def inverse_factor(products: Tensor) -> Tensor:
    """Return the upper U (K, K) of the inverse U.T @ U of the damped products. Divided by its
    diagonal, row i has the share of the error of column i that each later column takes over.

    If the products are F @ F.T with an upper F, U is the inverse of F.
    """
    damped = products.double()
    damped.diagonal().add_(DAMPING * damped.diagonal().mean().item() or 1.0)
    factor = torch.linalg.cholesky(damped.flip(0, 1)).flip(0, 1)
    identity = torch.eye(len(factor), dtype=factor.dtype)
    return torch.linalg.solve_triangular(factor, identity, upper=True).float()


def round_columns(columns: Tensor, factor: Tensor) -> Tensor:
    """Return int8 of columns (K, N) in units. Overwrites the columns."""
    units = torch.empty_like(columns, dtype=torch.int8)
    for first in range(0, len(columns), BLOCK):
        last = min(first + BLOCK, len(columns))
        errors = torch.empty_like(columns[first:last])
        for i in range(first, last):
            whole = columns[i].round().clamp(-127, 127)
            units[i] = whole
            errors[i - first] = error = (columns[i] - whole) / factor[i, i]
            columns[i:last] -= factor[i, i:last].unsqueeze(1) * error
        columns[last:] -= factor[first:last, last:].T @ errors
    return units
