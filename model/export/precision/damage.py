"""The damage of int8 to a network's output: the divergence of its log-probs on sample texts."""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from model.data.pairs import pad
from model.export.checks.samples import IdPairs
from model.export.precision.int8_products import NEAREST, ByGptq, Scales, rounded
from model.network.transformer import Transformer

LIKELIEST = 16  # tokens at a position whose probabilities are compared one by one
PAIRS = 8  # that are computed at once
POSITIONS = 64  # whose log-probs exist at once: a vocabulary may have 256,000


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded pairs, and at each of their N positions the ids and the log-probs (N, K) of the tokens
    that are likeliest at fp32."""

    source: tuple[Tensor, Tensor]  # ids (B, S), lengths (B,)
    target: tuple[Tensor, Tensor]  # decoder inputs (B, T), lengths (B,)
    ids: Tensor
    log_probs: Tensor


class Damage:
    """Compares int8 with fp32, teacher-forced, on the pairs that it was made with."""

    def __init__(
        self, model: Transformer, scales: Scales, pairs: IdPairs, by_gptq: ByGptq = NEAREST
    ) -> None:
        self._model = model
        self._scales = scales
        self.by_gptq = by_gptq
        self.passes = 0
        by_length = sorted(pairs, key=lambda pair: len(pair[1]))
        chunks = (by_length[first : first + PAIRS] for first in range(0, len(pairs), PAIRS))
        self._batches = [self._exact(chunk) for chunk in chunks]
        entropies = torch.cat([entropy(batch.log_probs) for batch in self._batches])
        self.entropy = entropies.mean().item()  # nats a token, of fp32

    @torch.no_grad()
    def of(self, int8: Collection[str], wide: Collection[str] = ()) -> float:
        """Return the mean over positions of the Kullback-Leibler divergence, in nats, of int8 from
        fp32, if the modules `int8` compute in int8: those of `wide` with 16 bits of activations.

        Tokens that fp32 finds less likely than LIKELIEST others count as one.
        """
        total = count = 0.0
        self.passes += 1
        with rounded(self._model, int8, self._scales, wide, self.by_gptq):
            for batch in self._batches:
                hidden = self._hidden(batch.source, batch.target)
                total += divergence(batch.log_probs, self._chosen(hidden, batch.ids)).sum().item()
                count += len(hidden)
        return total / count

    @torch.no_grad()
    def _exact(self, pairs: IdPairs) -> Batch:
        pad_id = self._model.config.pad_id
        source = pad([source for source, _ in pairs], pad_id)
        target = pad([target for _, target in pairs], pad_id)
        hidden = self._hidden(source, target)  # (N, M)
        most = min(LIKELIEST, self._model.config.target_vocab_size)
        best = [self._model.log_probs(rows).topk(most) for rows in hidden.split(POSITIONS)]
        ids = torch.cat([each.indices for each in best])
        return Batch(source, target, ids, torch.cat([each.values for each in best]))

    def _hidden(self, source: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
        """Return (N, M): the decoder's output at every position that is not padding."""
        memory, _ = self._model.encoder(*source)
        cross = self._model.decoder.cross(memory)
        hidden = self._model.decoder(*target, cross, source[1]).hidden  # (B, T, M)
        places = torch.arange(hidden.size(1)) < target[1].unsqueeze(1)  # (B, T)
        return hidden[places]

    def _chosen(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """Return the log-probs (N, K) of `ids` after hidden (N, M)."""
        pieces = zip(hidden.split(POSITIONS), ids.split(POSITIONS), strict=True)
        return torch.cat([self._model.log_probs(rows).gather(-1, i) for rows, i in pieces])


def divergence(exact: Tensor, other: Tensor) -> Tensor:
    """Return sum p log(p / q) (N,), given log p and log q (N, K) of some tokens."""
    exact, other = with_rest(exact), with_rest(other)
    return (exact.exp() * (exact - other)).sum(-1)


def entropy(log_probs: Tensor) -> Tensor:
    """Return - sum p log p (N,), given log p (N, K) of some tokens."""
    whole = with_rest(log_probs)
    return -(whole.exp() * whole).sum(-1)


def with_rest(log_probs: Tensor) -> Tensor:
    """(N, K) -> (N, K + 1): all other tokens are one more."""
    rest = (1 - log_probs.exp().sum(-1, keepdim=True)).clamp(min=1e-9)
    return torch.cat([log_probs, rest.log()], -1)
