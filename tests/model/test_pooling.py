"""The mechanisms of /v1/attend, in torch."""

import numpy as np
import pytest
import torch

from model.pooling import Gaussian
from service.examples import LEARNED_WIDTH, X, Y


def test_a_learned_width_fits_the_regression_and_sharpens_its_weights():
    """Each point is predicted from all others; five epochs of gradient descent."""
    x, y, count = torch.tensor(X), torch.tensor(Y), len(X)
    others = ~torch.eye(count, dtype=torch.bool)
    queries = x.view(count, 1, 1)
    keys, values = (p.expand(count, count)[others].view(count, -1, 1) for p in (x, y))
    lengths = torch.full((count, 1), count - 1)
    width, pooling = torch.nn.Parameter(torch.tensor([0.5])), Gaussian()
    optimizer = torch.optim.SGD([width], lr=0.1)

    def pool():
        outputs, weights = pooling(queries, keys, values, lengths, width)
        return ((outputs.flatten() - y) ** 2).sum(), weights.max(-1).values.mean().item()

    before, blurred = pool()
    loss = before
    for _ in range(5):
        optimizer.zero_grad()
        (loss / 2).backward()
        optimizer.step()
        loss, sharpness = pool()
    assert loss < before / 3
    assert sharpness > 2 * blurred
    assert width.item() == pytest.approx(LEARNED_WIDTH, abs=0.01)
    assert np.isfinite(loss.item())
