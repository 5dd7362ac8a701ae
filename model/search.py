"""Greedy and beam search as plainly as they can be written: the oracle the service is held to.

Every token costs a full forward pass of the prefix; nothing is cached.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from model.network.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """Generated ids, eos included when it ended there, and the log-prob of each."""

    token_ids: list[int]
    log_probs: list[float]

    @property
    def score(self) -> float:
        """Mean log-prob a token: a length penalty of 1."""
        return sum(self.log_probs) / len(self.token_ids)


@torch.no_grad()
def greedy_search(
    model: Transformer, source_ids: Tensor, source_length: Tensor, max_new_tokens: int
) -> list[Hypothesis]:
    """(B, S) ids, (B,) lengths -> one hypothesis a source."""
    config = model.config
    rows = source_ids.size(0)
    target_ids = torch.full((rows, 1), config.bos_id)
    log_probs = torch.zeros(rows, 0)
    finished = torch.zeros(rows, dtype=torch.bool)
    for length in range(1, max_new_tokens + 1):
        lengths = torch.full((rows,), length)
        last = model(source_ids, source_length, target_ids, lengths)[:, -1]  # (B, V)
        best, token = last.max(-1)
        target_ids = torch.cat([target_ids, token.unsqueeze(1)], 1)
        log_probs = torch.cat([log_probs, best.unsqueeze(1)], 1)
        finished |= token == config.eos_id
        if finished.all():
            break
    hypotheses: list[Hypothesis] = []
    for ids, probs in zip(target_ids[:, 1:].tolist(), log_probs.tolist(), strict=True):
        end = ids.index(config.eos_id) + 1 if config.eos_id in ids else len(ids)
        hypotheses.append(Hypothesis(ids[:end], probs[:end]))
    return hypotheses


@torch.no_grad()
def beam_search(
    model: Transformer,
    source_ids: Tensor,
    beam_size: int,
    max_new_tokens: int,
) -> list[Hypothesis]:
    """(S,) ids -> hypotheses, best score first. Stops when beam_size hypotheses are finished."""
    config = model.config
    source_length = torch.tensor([len(source_ids)])
    memory, _ = model.encoder(source_ids.unsqueeze(0), source_length)
    beams = [Hypothesis([], [])]
    finished: list[Hypothesis] = []
    for length in range(1, max_new_tokens + 1):
        target_ids = torch.tensor([[config.bos_id, *beam.token_ids] for beam in beams])
        cross = model.decoder.cross(memory.expand(len(beams), -1, -1))
        hidden = model.decoder(
            target_ids, torch.full((len(beams),), length), cross, source_length.expand(len(beams))
        ).hidden[:, -1]
        total = torch.tensor([sum(beam.log_probs) for beam in beams])
        log_probs = model.log_probs(hidden)  # (K, V)
        totals = (total.unsqueeze(1) + log_probs).flatten()  # (K * V,)
        ranked: list[int] = totals.topk(min(2 * beam_size, len(totals))).indices.tolist()
        candidates: list[Hypothesis] = []
        for rank, index in enumerate(ranked):
            parent, token = divmod(index, config.target_vocab_size)
            beam = beams[parent]
            log_prob = log_probs[parent, token].item()
            grown = Hypothesis([*beam.token_ids, token], [*beam.log_probs, log_prob])
            if token != config.eos_id:
                candidates.append(grown)
            elif rank < beam_size:
                finished.append(grown)
        beams = candidates[:beam_size]
        if length == max_new_tokens:
            finished += beams  # they compete with all that ended, also in this last step
        if len(finished) >= beam_size:
            break
    finished.sort(key=lambda hypothesis: hypothesis.score, reverse=True)
    return finished[:beam_size]
