"""Dropout that draws the random bits of several values at once."""

import torch
from torch import Tensor, nn

LEVELS = 2**16  # p is rounded to a multiple of 1 / LEVELS


class Dropout(nn.Module):
    """In training, zero values with probability `p` and multiply the others by 1 / (1 - p).

    Srivastava et al. 2014. nn.Dropout draws a float for each value, which is slow on a CPU; here
    one integer of 64 bits decides for four values.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.dropped = int(p * LEVELS)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.dropped:
            return x
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device)  # rounded up
        levels = words.random_(-(2**63), None).view(torch.int16)  # uniform, four per word
        levels = levels[: x.numel()].view(x.shape)
        kept = (levels >= self.dropped - LEVELS // 2).to(x.dtype)
        return x * kept.mul_(LEVELS / (LEVELS - self.dropped))
