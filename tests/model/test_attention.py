import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from model.attention import TORCH_KERNEL, MultiHeadAttention, masked_softmax, write_cache


def numpy_softmax(scores, lengths):
    """(B, H, T, S), (B, T): plain loops."""
    weights = np.zeros_like(scores)
    for b, h, t in np.ndindex(scores.shape[:3]):
        valid = scores[b, h, t, : lengths[b, t]]
        exponentials = np.exp(valid - valid.max())
        weights[b, h, t, : lengths[b, t]] = exponentials / exponentials.sum()
    return weights


@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1.0, 1e4]))
def test_masked_softmax_equals_numpy_for_a_length_per_query(seed, scale):
    random = np.random.default_rng(seed)
    scores = scale * random.standard_normal((2, 3, 4, 5))
    lengths = random.integers(1, 6, (2, 4))
    ours = masked_softmax(torch.tensor(scores), torch.tensor(lengths)).numpy()
    np.testing.assert_allclose(ours, numpy_softmax(scores, lengths), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(ours.sum(-1), 1, rtol=1e-12)
    assert (ours[np.arange(5) >= lengths[:, None, :, None].repeat(3, 1)] == 0).all()


def test_one_length_per_sequence_holds_for_each_of_its_queries():
    scores, lengths = torch.randn(2, 3, 4, 5), torch.tensor([2, 5])
    each = lengths.unsqueeze(1).expand(2, 4)
    assert torch.equal(masked_softmax(scores, lengths), masked_softmax(scores, each))


@pytest.mark.parametrize(("d_model", "num_heads"), [(12, 1), (12, 3), (32, 8)])
def test_multi_head_attention_equals_torch(d_model, num_heads):
    torch.manual_seed(0)
    ours = MultiHeadAttention(d_model, num_heads, dropout=0.0)
    theirs = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
    packed = torch.cat([ours.query.weight, ours.key.weight, ours.value.weight])
    biases = torch.cat([ours.query.bias, ours.key.bias, ours.value.bias])
    theirs.load_state_dict(
        {
            "in_proj_weight": packed,
            "in_proj_bias": biases,
            "out_proj.weight": ours.output.weight,
            "out_proj.bias": ours.output.bias,
        }
    )
    x, memory = torch.randn(3, 4, d_model), torch.randn(3, 6, d_model)
    lengths = torch.tensor([6, 2, 5])
    padding = torch.arange(6) >= lengths.unsqueeze(1)
    output, weights = ours(x, ours.project(memory), lengths, TORCH_KERNEL)
    expected, expected_weights = theirs(
        x, memory, memory, key_padding_mask=padding, average_attn_weights=False
    )
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(weights, expected_weights, rtol=1e-5, atol=1e-6)


def test_cache_is_written_at_each_rows_own_position():
    cache, new = torch.zeros(2, 1, 3, 2), torch.ones(2, 1, 1, 2)
    written = write_cache(cache, new, torch.tensor([2, 0]))
    assert written[:, 0, :, 0].tolist() == [[0, 0, 1], [1, 0, 0]]
    assert not cache.any()  # state goes in and comes out
