import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from model.network.attention import TORCH_KERNEL, MultiHeadAttention
from model.network.config import ScoreFunction, TransformerConfig
from model.network.scores import masked_softmax, scaled_dot_product_scores


def config(dropout=0.0, **sizes):
    return TransformerConfig(source_vocab_size=9, target_vocab_size=9, dropout=dropout, **sizes)


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
    ours = MultiHeadAttention(config(d_model=d_model, num_heads=num_heads))
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


def test_a_row_without_a_valid_key_weighs_nothing():
    weights = masked_softmax(torch.randn(2, 1, 3, 4), torch.tensor([[0, 1, 4], [2, 0, 0]]))
    assert torch.isfinite(weights).all()
    sums = torch.tensor([[0.0, 1, 1], [1, 0, 0]])
    torch.testing.assert_close(weights.sum(-1)[:, 0], sums)


def numpy_scores(name, query, keys, parameter):
    """(T, D), (S, D) of one head: plain loops."""
    scores = np.zeros((len(query), len(keys)))
    for t, s in np.ndindex(scores.shape):
        q, k = query[t], keys[s]
        scores[t, s] = {
            "scaled_dot_product": lambda q, k: q @ k / np.sqrt(len(q)),
            "additive": lambda q, k: parameter @ np.tanh(q + k),
            "gaussian": lambda q, k: -0.5 * ((parameter * (q - k)) ** 2).sum(),
        }[name](q, k)
    return scores


@pytest.mark.parametrize("name", list(ScoreFunction))
@pytest.mark.parametrize(("num_heads", "d_qk", "d_v"), [(5, 7, 7), (2, 3, 6), (3, 5, 2)])
def test_every_score_function_and_head_dim_equals_numpy(name, num_heads, d_qk, d_v):
    torch.manual_seed(0)
    sizes = {"num_heads": num_heads, "d_qk": d_qk, "d_v": d_v}
    attention = MultiHeadAttention(config(d_model=35, score_function=name, **sizes)).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x, memory = torch.randn(2, 4, 35).double(), torch.randn(2, 6, 35).double()
    lengths = torch.tensor([6, 2])
    output, weights = attention(x, attention.project(memory), lengths, TORCH_KERNEL)
    parts = {part: getattr(attention, part) for part in ("query", "key", "value", "output")}
    w = {part: layer.weight.detach().numpy().T for part, layer in parts.items()}
    bias = {part: layer.bias.detach().numpy() for part, layer in parts.items()}
    parameters = [p.detach().numpy() for p in attention.score.parameters()]
    for b, length in enumerate(lengths.tolist()):
        mixed = np.zeros((4, num_heads * d_v))
        for h in range(num_heads):
            qk, v = slice(h * d_qk, (h + 1) * d_qk), slice(h * d_v, (h + 1) * d_v)
            query = (x[b].numpy() @ w["query"] + bias["query"])[:, qk]
            keys = (memory[b].numpy() @ w["key"] + bias["key"])[:length, qk]
            values = (memory[b].numpy() @ w["value"] + bias["value"])[:length, v]
            scores = numpy_scores(name, query, keys, parameters[0][h] if parameters else None)
            expected = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
            np.testing.assert_allclose(weights[b, h, :, :length].detach(), expected, rtol=1e-9)
            mixed[:, v] = expected @ values
        expected_output = mixed @ w["output"] + bias["output"]
        np.testing.assert_allclose(output[b].detach(), expected_output, rtol=1e-9, atol=1e-9)


def test_scaling_keeps_the_variance_of_scores_and_the_gradient_of_softmax_alive():
    """Vaswani et al. 2017, footnote 4: unscaled, the variance of q . k is d."""
    torch.manual_seed(0)
    gradients = {}
    for d in (16, 1024):
        query, keys = torch.randn(1, 1, 200, d), torch.randn(1, 1, 200, d)
        scaled = scaled_dot_product_scores(query, keys)
        unscaled = query @ keys.transpose(-2, -1)
        assert scaled.var().item() == pytest.approx(1, rel=0.1)
        assert unscaled.var().item() == pytest.approx(d, rel=0.1)
        for name, scores in (("scaled", scaled), ("unscaled", unscaled)):
            scores = scores.detach().requires_grad_()
            weights = masked_softmax(scores, torch.tensor([200]))
            (gradient,) = torch.autograd.grad(weights.max(-1).values.sum(), scores)
            gradients[name, d] = gradient.abs().sum(-1).median().item()
    assert gradients["scaled", 1024] == pytest.approx(gradients["scaled", 16], rel=0.1)
    assert gradients["unscaled", 1024] < gradients["scaled", 1024] / 10


def test_dropout_falls_on_the_weights():
    """With everything dropped but the bias, the output is the bias of the last product."""
    torch.manual_seed(0)
    attention = MultiHeadAttention(config(d_model=8, num_heads=2, dropout=0.999999))
    x = torch.randn(1, 3, 8)
    output, weights = attention(x, attention.project(x), torch.tensor([3]), TORCH_KERNEL)
    torch.testing.assert_close(output, attention.output.bias.expand_as(output))
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 3))


def test_cache_is_written_at_each_rows_own_position():
    cache, new = torch.zeros(2, 1, 3, 2), torch.ones(2, 1, 1, 2)
    written = TORCH_KERNEL.write_cache(cache, new, torch.tensor([2, 0]))
    assert written[:, 0, :, 0].tolist() == [[0, 0, 1], [1, 0, 0]]
    assert not cache.any()  # state goes in and comes out
