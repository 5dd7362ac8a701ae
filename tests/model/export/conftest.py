"""Bundles of random networks, which several modules test."""

import dataclasses

import numpy as np
import pytest
import torch

from model.checkpoint import TrainedModel, load_model
from model.data.tokenizers import Unit, build_tokenizer
from model.export.bundle import WeightType, write_bundle
from model.export.files.manifest import Card, Precision
from model.export.files.weights import round_weights
from model.network.config import (
    Activation,
    NormKind,
    Positions,
    ScoreFunction,
    Tied,
    TransformerConfig,
)
from model.network.transformer import Transformer

CARD = Card(name="random", task="tests", licence="Apache-2.0", attribution="nobody", notice="none")


def random_config(seed, source_vocab_size, target_vocab_size):
    """Small sizes; the first six seeds have every score function before and after the norm.

    GroupQueryAttention takes the heads of 0, with rotary, and 6, without, both with a relative
    bias; rotary is also combined with heads that it refuses (3) and other scores (8). The weight of
    an additive score is large enough to be stored (4). The first four seeds have every activation
    and every way of tying.
    """
    random = np.random.default_rng(seed)
    num_heads = int(random.integers(1, 6))
    divides = bool(random.integers(2))
    head_dim = {0: 16, 4: 72}.get(seed % 6)
    config = TransformerConfig(
        source_vocab_size=source_vocab_size,
        target_vocab_size=target_vocab_size,
        d_model=num_heads * int(random.integers(2, 8)) if divides else int(random.integers(6, 36)),
        d_ff=int(random.integers(8, 40)),
        num_heads=num_heads,
        d_qk=head_dim or (0 if divides else int(random.integers(1, 9))),
        d_v=head_dim or (0 if divides else int(random.integers(1, 9))),
        score_function=list(ScoreFunction)[seed % 3],
        norm=list(NormKind)[(seed + seed // 3) % 3],
        norm_epsilon=[1e-5, 1e-6][seed % 2],
        norm_first=bool(seed // 3 % 2),
        final_norm=[None, True, False][seed % 3],
        embedding_norm=seed % 5 == 1,
        embedding_scale=[0.0, 1.0, 2.5][seed // 2 % 3],
        positions=list(Positions)[seed % 3],
        relative_distance=[3, 0, 40][seed % 3],
        relative_per_layer=seed % 4 == 2,
        activation=list(Activation)[seed % 4],
        gated=seed % 3 > 0,
        tied=list(Tied)[seed % 4],
        num_encoder_layers=int(random.integers(1, 3)),
        num_decoder_layers=int(random.integers(1, 3)),
        max_source_length=33,
        max_target_length=33,
    )
    rotary = seed % 4 in (0, 3) and config.score_function != ScoreFunction.additive
    return dataclasses.replace(config, rotary=rotary, d_qk=config.d_qk + config.d_qk % 2 * rotary)


# The first three seeds have every score function, with and without rotary positions. An export of
# eight graphs at three precisions takes half a minute.
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 100))]


@pytest.fixture(scope="session", params=SEEDS)
def exported(request, tmp_path_factory):
    """A bundle's folder and the torch model that it holds."""
    torch.manual_seed(request.param)
    source = build_tokenizer(["abcdefgh"], Unit.characters)
    target = build_tokenizer(["s t u v w x y z"], Unit.words)
    config = random_config(request.param, source.get_vocab_size(), target.get_vocab_size())
    model = Transformer(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    folder = tmp_path_factory.mktemp("export") / "random"
    weights = list(WeightType)[request.param % 2]
    round_weights(model, weights)
    write_bundle(TrainedModel(model, source, target), CARD, weights, folder, Precision.all)
    return folder, load_model(folder).transformer
