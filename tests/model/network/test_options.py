"""The options of the network that other families of models need, each against its formula."""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from model.network.config import Activation, NormKind, Positions, Tied, TransformerConfig
from model.network.embedding import Embedding
from model.network.feed_forward import FeedForward
from model.network.norms import layer_norm
from model.network.positions import RelativeBias
from model.network.transformer import Transformer

SIZES = {
    "source_vocab_size": 11,
    "target_vocab_size": 11,
    "d_model": 16,
    "d_ff": 24,
    "num_heads": 2,
    "num_encoder_layers": 2,
    "num_decoder_layers": 3,
}
T5 = {
    "norm": NormKind.rms_norm,
    "norm_first": True,
    "positions": Positions.none,
    "relative_distance": 3,
    "activation": Activation.gelu_tanh,
    "gated": True,
    "tied": Tied.embeddings,
    "embedding_scale": 1.0,
}
BART = {
    "positions": Positions.learned,
    "activation": Activation.gelu,
    "embedding_norm": True,
    "tied": Tied.all,
}
OPTIONS = [
    T5,
    {**T5, "relative_per_layer": True, "rotary": True},
    {**BART, "target_positions_last": True, "embedding_scale": 3.0},
    {"activation": Activation.silu, "final_norm": True, "tied": Tied.target},
]
FORMULAS = {
    Activation.relu: lambda x: max(x, 0),
    Activation.gelu: lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    Activation.gelu_tanh: lambda x: (
        x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    ),
    Activation.silu: lambda x: x / (1 + math.exp(-x)),
}


def configure(**options):
    torch.manual_seed(0)
    return TransformerConfig(**{**SIZES, **options})


def random_model(**options):
    model = Transformer(configure(**options)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def linear(layer, x):
    return x @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()


@torch.no_grad()
@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("gated", [False, True])
def test_a_feed_forward_layer_is_its_formula(activation, gated):
    layer, x = FeedForward(configure(activation=activation, gated=gated)), torch.randn(2, 3, 16)
    formula = np.vectorize(FORMULAS[activation])
    if gated:
        hidden = formula(linear(layer.gate, x.numpy())) * linear(layer.up, x.numpy())
    else:
        hidden = formula(linear(layer.up, x.numpy()))
    expected = torch.tensor(linear(layer.down, hidden)).float()
    torch.testing.assert_close(layer.eval()(x), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_the_rms_norm_is_its_formula():
    norm, x = layer_norm(configure(norm=NormKind.rms_norm, norm_epsilon=0.01)), torch.randn(4, 16)
    nn.init.normal_(norm.weight)
    rows = x.numpy().astype(float)
    expected = rows / np.sqrt((rows**2).mean(-1, keepdims=True) + 0.01) * norm.weight.numpy()
    torch.testing.assert_close(norm(x), torch.tensor(expected).float(), rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_an_embedding_is_scaled_placed_and_normalised():
    learned = configure(
        positions=Positions.learned, embedding_norm=True, embedding_scale=3.0, norm_epsilon=0.1
    )
    embedding = Embedding(11, 7, learned).eval()
    nn.init.normal_(embedding.positions)
    rows = embedding.tokens.weight.numpy()[[4, 4, 9]] * 3 + embedding.positions.numpy()[[0, 6, 2]]
    centred = rows - rows.mean(-1, keepdims=True)
    expected = torch.tensor(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 0.1))
    found = embedding(torch.tensor([4, 4, 9]), torch.tensor([0, 6, 2]))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    last = Embedding(11, 7, learned, positions_last=True).eval()  # the norm, then positions
    nn.init.normal_(last.positions)
    rows, placed = last.tokens.weight.numpy()[[4, 4, 9]], last.positions.numpy()[[0, 6, 2]]
    centred = rows - rows.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 0.1) + placed
    found = last(torch.tensor([4, 4, 9]), torch.tensor([0, 6, 2]))
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=1e-5)
    bare = Embedding(11, 7, configure(positions=Positions.none)).eval()
    torch.testing.assert_close(
        bare(torch.tensor([5]), torch.tensor([3])), bare.tokens.weight[5:6] * 4
    )


@torch.no_grad()
@pytest.mark.parametrize("causal", [False, True])
def test_a_relative_bias_is_looked_up_by_distance(causal):
    relative = RelativeBias(3, 2, causal=causal)
    nn.init.normal_(relative.table)

    def expected(head, query, key):
        least = 0 if causal else -3
        return relative.table[min(max(query - key, least), 3) - least, head]

    sequence = relative.sequence(torch.arange(9))
    assert sequence.shape == (1, 2, 9, 9)
    step = relative.step(torch.tensor([8, 0, 4]), 9)
    assert step.shape == (3, 2, 1, 9)
    for head in range(2):
        for key in range(9):
            assert all(sequence[0, head, q, key] == expected(head, q, key) for q in range(9))
            for row, query in enumerate([8, 0, 4]):
                assert step[row, head, 0, key] == expected(head, query, key)


@torch.no_grad()
@pytest.mark.parametrize("options", OPTIONS[:2])
def test_all_weight_goes_to_the_only_distance_without_a_penalty(options):
    model = random_model(**options)
    for each in (*model.encoder.relative, *model.decoder.relative):
        nn.init.constant_(each.table, -1e4)
        each.table[1 - each.least] = 0.0  # one position back
    ids, length = torch.randint(3, 11, (1, 6)), torch.tensor([6])
    _, layers = model.encoder(ids, length)
    decoded = model.decoder(ids, length, model.decoder.cross(model.encoder(ids, length)[0]), length)
    for weights in (*(layer.weights for layer in layers), *decoded.decoder_attention):
        back = weights[0, :, range(1, 6), range(5)]
        torch.testing.assert_close(back, torch.ones_like(back))


@torch.no_grad()
@pytest.mark.parametrize("options", OPTIONS)
def test_cached_steps_equal_the_full_forward_pass(options):
    model = random_model(**options)
    source, source_length = torch.randint(3, 11, (2, 5)), torch.tensor([5, 3])
    target = torch.randint(3, 11, (2, 6))
    full = model(source, source_length, target, torch.tensor([6, 6]))
    cross = model.decoder.cross(model.encoder(source, source_length)[0])
    cache = model.empty_cache(2, 9)
    for t in range(7):
        position = torch.tensor([min(t, 5), max(t - 1, 0)])  # the second row is one behind
        token = target[torch.arange(2), position]
        decoded = model.decoder.step(token, position, cache, cross, source_length)
        cache, expected = decoded.cache, full[torch.arange(2), position]
        torch.testing.assert_close(model.log_probs(decoded.hidden), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", OPTIONS)
def test_every_parameter_of_an_option_is_trained(options):
    model = random_model(**options).train()
    ids, length = torch.randint(3, 11, (2, 6)), torch.tensor([6, 4])
    model(ids, length, ids, length)[..., 3].sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0 or name.endswith("key.bias"), name


@pytest.mark.parametrize(
    ("tied", "matrices"), [(Tied.no, 3), (Tied.target, 2), (Tied.embeddings, 2), (Tied.all, 1)]
)
def test_a_tied_matrix_is_one_parameter_and_is_stored_once(tied, matrices, tmp_path):
    model = random_model(tied=tied)
    assert len([p for p in model.parameters() if p.shape == (11, 16)]) == matrices
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    state = load_file(tmp_path / "model.safetensors")
    assert len([tensor for tensor in state.values() if tensor.shape == (11, 16)]) == matrices
    loaded = Transformer(model.config)
    loaded.load_state_dict(state)
    for name, tensor in model.named_parameters(remove_duplicate=False):
        assert torch.equal(loaded.get_parameter(name), tensor)
    assert len([p for p in loaded.parameters() if p.shape == (11, 16)]) == matrices
