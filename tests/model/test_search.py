import itertools

import pytest
import torch

from model.network.config import TransformerConfig
from model.network.transformer import Transformer
from model.search import beam_search, greedy_search


def five_words(seed):
    """Return a random model with five target tokens: pad, bos, eos and two words."""
    torch.manual_seed(seed)
    model = Transformer(
        TransformerConfig(
            source_vocab_size=6,
            target_vocab_size=5,
            d_model=8,
            d_ff=16,
            num_heads=2,
            num_encoder_layers=1,
            num_decoder_layers=1,
        )
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return model.eval()


@pytest.mark.parametrize("seed", range(5))
def test_a_beam_of_one_is_greedy(seed):
    model, source = five_words(seed), torch.tensor([3, 4, 5])
    greedy = greedy_search(model, source.unsqueeze(0), torch.tensor([3]), max_new_tokens=6)[0]
    beam = beam_search(model, source, beam_size=1, max_new_tokens=6)[0]
    assert beam.token_ids == greedy.token_ids
    assert beam.log_probs == pytest.approx(greedy.log_probs, abs=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("seed", range(5))
def test_a_beam_that_holds_every_target_finds_the_best(seed):
    """Four tokens go on and one ends, so that 85 targets have at most three tokens."""
    model, source = five_words(seed), torch.tensor([[3, 4]])
    bos, eos = model.config.bos_id, model.config.eos_id
    best = -float("inf"), []
    for length in (1, 2, 3):
        for ids in itertools.product(range(5), repeat=length):
            ended = ids[-1] == eos
            if eos in ids[:-1] or not (ended or length == 3):
                continue
            target = torch.tensor([[bos, *ids[:-1]]])
            log_probs = model(source, torch.tensor([2]), target, torch.tensor([length]))[0]
            score = sum(log_probs[i, token].item() for i, token in enumerate(ids)) / length
            best = max(best, (score, list(ids)))
    found = beam_search(model, source[0], beam_size=200, max_new_tokens=3)[0]
    assert found.token_ids == best[1]
    assert found.score == pytest.approx(best[0], abs=1e-5)
