"""The simpler simple recurrent unit: a decoder layer's memory of the target in one state.

Kim et al., "From Research to Production and Back: Ludicrously Fast Neural Machine Translation"
(2019), section 3.1. Marian calls it `transformer-decoder-autoreg: rnn`.

Axes: B batch, T target length, R rows of a step, M d_model.
"""

from typing import NamedTuple

from torch import Tensor, nn

from model.network.attention import TorchKernel
from model.network.config import TransformerConfig
from model.network.positions import Position


class State(NamedTuple):
    """States of one layer, laid out as keys and values are in a cache: (B, 1, T, M) after each
    position of whole targets, (R, 1, 1, M) after the last position of each row of a step."""

    state: Tensor


class SSRU(nn.Module):
    """relu(c_t), where c_t = f_t c_(t-1) + (1 - f_t) W x_t, c_0 = 0 and f_t = sigmoid(W_f x_t + b).

    The state takes the place of all keys and values: a step takes the same time at any position.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.values = nn.Linear(config.d_model, config.d_model, bias=False)
        self.forget_gate = nn.Linear(config.d_model, config.d_model)

    def forward(self, x: Tensor, kernel: TorchKernel) -> tuple[Tensor, State]:
        """Read whole targets (B, T, M) -> (B, T, M), and the state after each position."""
        forget, update = self._project(x)
        states = kernel.accumulate(forget, update)  # (B, T, M)
        return states.relu(), State(states.unsqueeze(1))

    def step(self, x: Tensor, past: State, position: Position) -> tuple[Tensor, State]:
        """Read one position per row, x (R, M) -> (R, M), and the states after it.

        The past of a row at position 0 is not read: whatever it holds, c_0 is 0.
        """
        forget, update = self._project(x)
        begun = (position.positions > 0).unsqueeze(1)  # (R, 1)
        kept = past.state.flatten(1).masked_fill(~begun, 0.0)  # (R, M)
        state = forget * kept + update  # (R, M)
        return state.relu(), State(state[:, None, None])

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return f and (1 - f) W x, each (..., M)."""
        forget = self.forget_gate(x).sigmoid()
        return forget, (1 - forget) * self.values(x)
