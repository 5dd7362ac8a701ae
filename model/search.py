"""Greedy and beam search written as plainly as possible: the oracle for the service's searches.

Nothing is cached, so that every step decodes its whole target again.
Axes: B sources, S source length, T target length, V vocabulary, K beams.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import torch
from torch import Tensor

from model.network.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """Generated ids, eos included where it was generated, and the log-prob of each."""

    token_ids: list[int]
    log_probs: list[float]

    @property
    def score(self) -> float:
        """Mean log-prob of a token, which is the service's score at a length penalty of 1."""
        return sum(self.log_probs) / len(self.token_ids)


@torch.no_grad()
def greedy_search(
    model: Transformer, source_ids: Tensor, source_length: Tensor, max_new_tokens: int
) -> list[Hypothesis]:
    """Return the hypothesis of each source, given ids (B, S) and lengths (B,)."""
    config = model.config
    rows = source_ids.size(0)
    target_ids = torch.full((rows, 1), config.bos_id)  # (B, T)
    log_probs = torch.zeros(rows, 0)  # (B, T - 1)
    finished = torch.zeros(rows, dtype=torch.bool)  # (B,)
    for length in range(1, max_new_tokens + 1):
        lengths = torch.full((rows,), length)  # (B,)
        last = model(source_ids, source_length, target_ids, lengths)[:, -1]  # (B, V)
        best, token = last.max(-1)  # (B,), (B,)
        target_ids = torch.cat([target_ids, token.unsqueeze(1)], 1)
        log_probs = torch.cat([log_probs, best.unsqueeze(1)], 1)
        finished |= token == config.eos_id
        if finished.all():
            break
    hypotheses: list[Hypothesis] = []
    for ids, probs in zip(target_ids[:, 1:].tolist(), log_probs.tolist(), strict=True):
        # A row is decoded past its eos until all rows have one: cut it there
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
    """Return at most beam_size hypotheses of a source (S,), best score first.

    The search stops when beam_size hypotheses have ended, or at max_new_tokens. At that limit,
    beams without an eos count as hypotheses too, and are ranked with those that ended.
    """
    config = model.config
    memory, _ = model.encoder(source_ids.unsqueeze(0), torch.tensor([len(source_ids)]))  # (1, S, M)
    beams = [Hypothesis([], [])]
    finished: list[Hypothesis] = []
    for length in range(1, max_new_tokens + 1):
        # STEP 1: the best 2 K continuations; at most K end with eos, so that K live ones remain
        ranked = best_continuations(model, memory, beams, 2 * beam_size)
        # STEP 2: ended ones of the best K become hypotheses, the best K live ones the next beams
        ended = [each.token_ids[-1] == config.eos_id for each in ranked]
        finished += compress(ranked[:beam_size], ended)
        beams = [each for each, ends in zip(ranked, ended, strict=True) if not ends][:beam_size]
        # STEP 3: at the limit, beams become hypotheses, too, as in Hugging Face and CTranslate2
        if length == max_new_tokens:
            finished += beams
        if len(finished) >= beam_size:
            break
    finished.sort(key=lambda hypothesis: hypothesis.score, reverse=True)
    return finished[:beam_size]


def best_continuations(
    model: Transformer, memory: Tensor, beams: Sequence[Hypothesis], count: int
) -> list[Hypothesis]:
    """Return the `count` most probable of all beams with one more token, best first, given the
    memory (1, S, M) of their source."""
    rows, source_length = len(beams), memory.size(1)
    target_ids = torch.tensor([[model.config.bos_id, *beam.token_ids] for beam in beams])  # (K, T)
    hidden = model.decoder(
        target_ids,
        torch.full((rows,), target_ids.size(1)),
        model.decoder.cross(memory.expand(rows, -1, -1)),
        torch.full((rows,), source_length),
    ).hidden[:, -1]  # (K, M)
    log_probs = model.log_probs(hidden)  # (K, V)
    total = torch.tensor([sum(beam.log_probs) for beam in beams])  # (K,)
    totals = (total.unsqueeze(1) + log_probs).flatten()  # (K * V,)
    best: list[int] = totals.topk(min(count, len(totals))).indices.tolist()
    grown: list[Hypothesis] = []
    for parent, token in (divmod(index, log_probs.size(1)) for index in best):
        beam, log_prob = beams[parent], log_probs[parent, token].item()
        grown.append(Hypothesis([*beam.token_ids, token], [*beam.log_probs, log_prob]))
    return grown
