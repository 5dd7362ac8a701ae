"""Position-wise feed-forward layers, plain or gated."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from model.network.config import Activation, TransformerConfig
from model.network.dropout import Dropout

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.relu: functional.relu,
    Activation.gelu: functional.gelu,
    Activation.gelu_tanh: partial(functional.gelu, approximate="tanh"),
    Activation.silu: functional.silu,
}


class FeedForward(nn.Module):
    """Two linear layers with an activation between, the same at every position.

    Vaswani et al. 2017, section 3.3. If gated, down(activation(gate(x)) up(x)) of Shazeer 2020.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.gate = nn.Linear(config.d_model, config.d_ff) if config.gated else None
        self.up = nn.Linear(config.d_model, config.d_ff)
        self.down = nn.Linear(config.d_ff, config.d_model)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            hidden = self.activation(self.up(x))
        else:
            hidden = self.activation(self.gate(x)) * self.up(x)
        return self.down(self.dropout(hidden))
