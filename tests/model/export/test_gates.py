"""Graphs with a gate for each head, compared with a network whose output projections lack its
slices."""

import copy

import numpy as np
import pytest
import torch

from service.bundle.manifest import load_bundle
from service.runtime.session import Session
from service.search.rules import log_softmax
from service.settings.settings import Provider, Settings

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
LENGTHS = [(6, 4), (1, 3), (9, 5)]  # of sources and targets
PRECISIONS = ["fp32", "int8", "fp16"]


def open_session(folder, precision="fp32"):
    return Session(load_bundle(folder), Settings(precision=precision, provider=Provider.cpu))


def pairs_of(config, seed=0):
    random = np.random.default_rng(seed)
    sources = [random.integers(4, config.source_vocab_size, s) for s, _ in LENGTHS]
    targets = [random.integers(4, config.target_vocab_size, t) for _, t in LENGTHS]
    return sources, targets


def gates_of(config):
    """Gates of 1 for every head: those of the encoder, and those of the decoder."""
    count, heads = len(LENGTHS), config.num_heads
    encoder = np.ones((count, config.num_encoder_layers, heads), np.float32)
    return encoder, np.ones((count, 2, config.num_decoder_layers, heads), np.float32)


def some_off(gates, seed):
    """Switch off about half of the heads, in each row others."""
    return gates * np.random.default_rng(seed).integers(0, 2, gates.shape).astype(np.float32)


def attentions(model):
    """The modules of the encoder (L), and of the decoder (2, L)."""
    layers = model.decoder.layers
    return (
        [layer.self_attention for layer in model.encoder.layers],
        [[layer.self_attention for layer in layers], [layer.cross_attention for layer in layers]],
    )


def without_slices(model, encoder, decoder):
    """The network with W_O = 0 for each head whose gate is 0; gates (L, H) and (2, L, H)."""
    cut = copy.deepcopy(model)
    of_encoder, of_decoder = attentions(cut)
    for modules, gates in ((of_encoder, encoder), *zip(of_decoder, decoder, strict=True)):
        for module, heads in zip(modules, gates, strict=True):
            slices = module.output.weight.unflatten(1, (module.num_heads, -1))
            slices[:, heads == 0] = 0
    return cut


def run_torch(model, source, target):
    """Memory, weights of each kind (L, H, ...), and log-probs (T, V), of one pair."""
    source_length, target_length = torch.tensor([len(source)]), torch.tensor([len(target)])
    memory, attended = model.encoder(torch.tensor(source[None]), source_length)
    cross = model.decoder.cross(memory)
    decoded = model.decoder(torch.tensor(target[None]), target_length, cross, source_length)
    kinds = ([each.weights for each in attended], decoded.decoder_attention)
    weights = [torch.cat(layers).numpy() for layers in (*kinds, decoded.cross_attention)]
    return memory[0].numpy(), weights, model.log_probs(decoded.hidden)[0].numpy()


def run_graphs(session, sources, targets, encoder, decoder):
    """The same of all pairs, and the log-prob of each target's last id at each position. Gates may
    be None."""
    memory, cross = session.encode(sources, encoder)
    own = session.encoder_attention(sources, encoder)
    crosses = [cross.pick([i]) for i in range(len(sources))]
    attended = session.attention(targets, crosses, decoder)
    wanted = [np.full(len(target), target[-1]) for target in targets]
    scores = session.score(targets, wanted, crosses, decoder)
    cache = session.new_cache(1)
    cache.insert(cross)
    steps = []
    for position in range(max(map(len, targets))):
        tokens = np.array([target[min(position, len(target) - 1)] for target in targets])
        logits = session.step(cache, tokens, 1, logits=True, gates=decoder).logits
        steps.append(log_softmax(logits))
    found = []
    for i, target in enumerate(targets):
        weights = [own[i].weights, *(each.weights for each in attended[i].values())]
        log_probs = np.stack(steps)[: len(target), i]
        found.append((memory[i], weights, log_probs, scores[i]))
    return found


@torch.no_grad()
@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_ablated_head_is_one_without_its_slice_of_the_output_projection(exported, precision):
    """Each pair has other heads: those of a neighbour change nothing."""
    folder, model = exported
    sources, targets = pairs_of(model.config)
    encoder, decoder = (some_off(each, i) for i, each in enumerate(gates_of(model.config)))
    session = open_session(folder, precision)
    found = run_graphs(session, sources, targets, encoder, decoder)
    # relative to the norm of torch's numbers: service/runtime/self_check.py
    limit = {"fp32": 1e-4, "int8": 0.2, "fp16": 0.05}[precision]
    for i, (memory, weights, log_probs, scores) in enumerate(found):
        cut = without_slices(model, encoder[i], decoder[i])
        torchs = run_torch(cut, sources[i], targets[i])
        pairs = [(memory, torchs[0]), *zip(weights, torchs[1], strict=True)]
        pairs += [(log_probs, torchs[2]), (scores, torchs[2][:, targets[i][-1]])]
        for ours, theirs in pairs:
            if precision == "fp32":
                np.testing.assert_allclose(ours, theirs, **TOLERANCE)
            assert np.linalg.norm(ours - theirs) <= limit * np.linalg.norm(theirs)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_open_gates_change_no_bit(exported, precision):
    """Weights of the encoder may differ by rounding: their graph computes attention in another
    order than the encoder."""
    folder, model = exported
    session, (sources, targets) = open_session(folder, precision), pairs_of(model.config)
    gated = run_graphs(session, sources, targets, *gates_of(model.config))
    plain = run_graphs(session, sources, targets, None, None)
    for ours, theirs in zip(gated, plain, strict=True):
        np.testing.assert_allclose(ours[1][0], theirs[1][0], atol=1e-2)
        numbers = zip(
            (ours[0], *ours[1][1:], *ours[2:]),
            (theirs[0], *theirs[1][1:], *theirs[2:]),
            strict=True,
        )
        for one, other in numbers:
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_gates_of_one_row_change_no_bit_of_another(exported, precision):
    folder, model = exported
    session, (sources, targets) = open_session(folder, precision), pairs_of(model.config)
    gates = gates_of(model.config)
    changed = [some_off(each, 5) for each in gates]
    for each in changed:
        each[1:] = 1
    before = run_graphs(session, sources, targets, *gates)
    after = run_graphs(session, sources, targets, *changed)
    for ours, theirs in zip(after[1:], before[1:], strict=True):
        for one, other in zip(
            (ours[0], *ours[1], *ours[2:]), (theirs[0], *theirs[1], *theirs[2:]), strict=True
        ):
            np.testing.assert_array_equal(one, other)


def record(module):
    """Return a list of what the module reads and returns."""
    calls = []
    module.register_forward_hook(lambda _, read, gave: calls.append((read[0], gave)))
    return calls


@torch.no_grad()
def test_norms_are_those_of_the_vectors_whose_sum_is_the_output_of_attention(exported):
    """NumPy computes W_O^h (W_V^h x + b_V^h) of every head from the weights. Weighted and added up,
    with the bias, these vectors are what torch's module returns."""
    folder, model = exported[0], copy.deepcopy(exported[1])
    session, (sources, targets) = open_session(folder), pairs_of(model.config)
    of_encoder, of_decoder = attentions(model)
    modules = [*of_encoder, *of_decoder[0], *of_decoder[1]]
    values = {module: record(module.value) for module in modules}
    outputs = {module: record(module.output) for module in modules}
    encoder, decoder = gates_of(model.config)
    own = session.encoder_attention(sources, encoder)
    _, cross = session.encode(sources)
    crosses = [cross.pick([i]) for i in range(len(sources))]
    attended = session.attention(targets, crosses, decoder)
    for i, (source, target) in enumerate(zip(sources, targets, strict=True)):
        run_torch(model, source, target)
        layers = [
            (each, layer)
            for each in (own[i], *attended[i].values())
            for layer in range(len(each.weights))
        ]
        for module, (ours, layer) in zip(modules, layers, strict=True):
            read, given = values[module][i][0][0].numpy(), outputs[module][i][1][0].numpy()
            w_v, b_v = module.value.weight.numpy(), module.value.bias.numpy()
            w_o, heads = module.output.weight.numpy(), module.num_heads
            value = (read @ w_v.T + b_v).reshape(len(read), heads, -1)  # (S, H, D)
            vectors = np.einsum("shd,mhd->hsm", value, w_o.reshape(len(w_o), heads, -1))
            norms = np.sqrt((vectors**2).sum(-1))
            np.testing.assert_allclose(ours.norms[layer], norms, **TOLERANCE)
            expected = ours.weights[layer] * norms[:, None]
            np.testing.assert_allclose(ours.measured("norm")[layer], expected, **TOLERANCE)
            total = np.einsum("hts,hsm->tm", ours.weights[layer], vectors)
            total += module.output.bias.numpy()
            np.testing.assert_allclose(total, given, rtol=1e-3, atol=1e-4)
