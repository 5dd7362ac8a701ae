"""Bundles of random networks with an SSRU decoder."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from model.checkpoint import TrainedModel
from model.data.tokenizers import UNK, Unit, build_tokenizer
from model.export.bundle import WeightType, write_bundle
from model.export.files.manifest import Card, Precision
from model.network.config import Activation, NormKind, Positions, Tied, TransformerConfig
from model.network.transformer import Transformer
from model.usage import Shortlists, plain_usage

ACTIVATIONS = [Activation.relu, Activation.silu, Activation.gelu]
NORMS = [NormKind.layer_norm, NormKind.rms_norm]


def random_config(seed, vocab_size):
    """Small sizes; half of the seeds, the first among them, normalise after a sublayer."""
    random = np.random.default_rng(seed)
    num_heads = int(random.integers(1, 5))
    return TransformerConfig(
        source_vocab_size=vocab_size,
        target_vocab_size=vocab_size,
        d_model=int(random.integers(6, 40)),
        d_ff=int(random.integers(8, 40)),
        num_heads=num_heads,
        d_qk=int(random.integers(2, 10)),
        d_v=int(random.integers(2, 10)),
        decoder="ssru",
        norm=NORMS[seed // 2 % 2],
        norm_epsilon=[1e-5, 1e-9][seed % 2],
        norm_first=bool(seed % 2),
        final_norm=[None, None, True][seed % 3],
        embedding_norm=seed % 5 == 1,
        embedding_scale=[0.0, 1.0, 2.5][seed // 2 % 3],
        positions=list(Positions)[seed % 3],
        activation=ACTIVATIONS[seed % 3],
        gated=seed % 4 > 1,
        tied=list(Tied)[(seed + 3) % 4],
        num_encoder_layers=int(random.integers(1, 3)),
        num_decoder_layers=int(random.integers(1, 4)),
        max_source_length=40,
        max_target_length=40,
    )


def random_shortlists(vocab_size, eos_id):
    """Each token of a source lists up to 3 tokens, and all sources list 2 and eos."""
    random = np.random.default_rng(5)
    lists = [
        np.sort(random.choice(vocab_size, random.integers(0, 4), replace=False))
        for _ in range(vocab_size)
    ]
    offsets = np.cumsum([0, *map(len, lists)])
    return Shortlists(offsets, np.concatenate(lists), np.union1d([4, 5], [eos_id]))


def write_random(seed, folder, precision=Precision.fp32, *, shortlisted=False):
    torch.manual_seed(seed)
    source, target = (
        build_tokenizer([letters], Unit.characters) for letters in ("abcdef", "stuvwx")
    )
    model = Transformer(random_config(seed, source.get_vocab_size())).eval()
    for name, parameter in model.named_parameters():
        if "norm" not in name:  # so that states neither vanish nor fill every prediction
            torch.nn.init.normal_(parameter, std=0.4)
    usage = plain_usage(model.config, source.token_to_id(UNK))
    guided = replace(usage, guided=(model.config.num_decoder_layers - 1, 0))
    if shortlisted:
        lists = random_shortlists(source.get_vocab_size(), model.config.eos_id)
        guided = replace(guided, shortlists=lists)
    trained = TrainedModel(model, source, target, guided)
    write_bundle(trained, Card(name="recurrent"), WeightType.fp32, folder, precision)
    return folder


@pytest.fixture(scope="session")
def listed(tmp_path_factory):
    """A bundle with shortlists, at every precision."""
    folder = tmp_path_factory.mktemp("recurrent") / "listed"
    return write_random(0, folder, Precision.all, shortlisted=True)


@pytest.fixture(scope="session")
def recurrent(listed):
    """The same bundle, whose shortlists are not used."""
    shutil.copytree(listed, folder := listed.parent / "all")
    path = folder / "bundle.json"
    manifest = json.loads(path.read_text())
    del manifest["shortlists"]
    path.write_text(json.dumps(manifest))
    return folder
