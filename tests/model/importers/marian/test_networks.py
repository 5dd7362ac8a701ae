"""Random models of Marian give the numbers of its formulas, in torch and over HTTP."""

import json

import numpy as np
import pytest
import torch

from model.data.pairs import pad
from model.importers.checkpoint import Checkpoint
from model.importers.convert import read_model
from tests.conftest import opened
from tests.model.importers.marian.folders import write_folder
from tests.model.importers.marian.oracle import Oracle
from tests.model.importers.served import TOLERANCE, convert, post
from tests.tracing import only

COUNT, FIRST = 20, 4
LONG = [pytest.param(seed, marks=pytest.mark.long) for seed in range(FIRST, COUNT)]
PLACES = [  # of norms: before, after, and at the top
    {"transformer-preprocess": "", "transformer-postprocess": "dan"},
    {"transformer-preprocess": "dn", "transformer-postprocess": "da"},
    {
        "transformer-preprocess": "n",
        "transformer-postprocess": "da",
        "transformer-postprocess-top": "n",
    },
]
SHARED = {"tied-embeddings-all": False}
TIED = [
    {},
    SHARED,
    SHARED | {"tied-embeddings": True},
    SHARED | {"tied-embeddings-src": True},
    SHARED | {"tied-embeddings-src": True, "tied-embeddings": True},
]


def random_options(seed):
    """Return options, and how the folder is written. The first seeds have every kind of each."""
    chance = np.random.default_rng(seed)
    pick = chance.choice
    rnn = {"transformer-decoder-autoreg": "rnn", "dec-cell": "ssru"}
    recurrent = seed % 2 == 1
    places = PLACES[0] if recurrent else PLACES[seed // 2 % 3]
    tied = TIED[seed % 5]
    apart = bool(tied) and "tied-embeddings-src" not in tied
    sizes = [[320, 320], [320, 340], [340, 320]][int(pick(3)) if apart else 0]
    return {
        "container": ("npz", "int8", "fp32")[seed % 3],
        "vocabulary": str(pick(["spm", "yml"])),
        "enc-depth": int(pick([1, 2, 3])),
        "dec-depth": int(pick([1, 2, 3])),
        "dim-emb": 32,
        "transformer-heads": int(pick([2, 4])),
        "transformer-dim-ffn": int(pick([40, 64])),
        "transformer-ffn-activation": ("gelu", "relu", "swish")[seed % 3],
        "transformer-postprocess-emb": str(pick(["d", "nd"])),
        "output-omit-bias": bool(pick([False, False, True])),
        "dim-vocabs": sizes,
        **places,
        **tied,
        **(rnn if recurrent else {}),
    }


def random_ids(chance, most):
    return chance.integers(2, 320, int(chance.integers(1, most))).tolist()


@pytest.mark.parametrize("seed", [*range(FIRST), *LONG])
@torch.no_grad()
def test_log_probs_and_weights(seed, tmp_path):
    options, tensors = write_folder(tmp_path / "model", seed, **random_options(seed))
    model, oracle = read_model(Checkpoint(tmp_path / "model")), Oracle(options, tensors)
    start, chance = model.config.bos_id, np.random.default_rng(seed)
    for _ in range(4):
        source, target = [*random_ids(chance, 20), 0], random_ids(chance, 20)
        memory, length = oracle.encode(source), torch.tensor([len(source)])
        expected, weights = oracle.decode(memory, target)
        ours, _ = model.encoder(*pad([source], start))
        ids, target_length = pad([[start, *target]], start)
        decoded = model.decoder(ids, target_length, model.decoder.cross(ours), length)
        found = model.log_probs(decoded.hidden)[0]
        np.testing.assert_allclose(found[:, : expected.shape[1]], expected, **TOLERANCE)
        assert found[:, expected.shape[1] :].max() < -1000  # the start is never generated
        crossed = torch.cat(decoded.cross_attention).numpy()
        np.testing.assert_allclose(crossed, weights, **TOLERANCE)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(COUNT))
def test_served_answers(seed, tmp_path):
    """Log-probs, weights and beams, in batches of mixed lengths and alone."""
    options, tensors = write_folder(tmp_path / "model", seed, **random_options(seed))
    oracle, chance = Oracle(options, tensors), np.random.default_rng(seed)
    pairs = [([*random_ids(chance, 20), 0], random_ids(chance, 12)) for _ in range(6)]
    sources, targets = map(list, zip(*pairs, strict=True))
    with only("encoder", "step", "score", "attention"):
        bundle = convert(tmp_path / "model")
    with opened(bundle) as client:
        score = post(client, "/v1/score", source=sources, target=targets)
        shown = post(
            client,
            "/v1/attention",
            source=sources,
            target=targets,
            attention={"kinds": ["cross"]},
        )
        for (source, target), scored, found in zip(pairs, score, shown, strict=True):
            log_probs, weights = oracle.decode(oracle.encode(source), target)
            expected = log_probs[np.arange(len(target)), target]
            np.testing.assert_allclose(scored["log_probs"], expected, **TOLERANCE)
            (block,) = found["attention"]
            np.testing.assert_allclose(block["data"], weights[:, :, : len(target)], **TOLERANCE)
        search = {"beam_size": 3, "num_hypotheses": 3, "max_new_tokens": 10}
        search |= {"early_stopping": True, "length_penalty": 1.0}
        together = post(client, "/v1/decode", source=sources, **search)
        for source, result in zip(sources, together, strict=True):
            expected = oracle.search(source, 3, 10)
            found = result["hypotheses"]
            assert [each["token_ids"] for each in found] == [tokens for tokens, _ in expected]
            for ours, (_, total) in zip(found, expected, strict=True):
                np.testing.assert_allclose(sum(ours["log_probs"]), total, **TOLERANCE)
            (alone,) = post(client, "/v1/decode", source=[source], **search)
            assert alone["hypotheses"][0]["token_ids"] == found[0]["token_ids"]


@pytest.mark.long
@pytest.mark.parametrize("file", ["model.npz", "opus.transformer-align.npz"])
def test_the_bundle_aligns_by_the_guided_head_if_that_is_known_or_likely(file, tmp_path):
    """Both networks are the same, and random."""
    folder = tmp_path / "model"
    write_folder(folder, **{"transformer-guided-alignment-layer": 1})
    (folder / "model.npz").rename(folder / file)
    bundle = convert(folder)
    alignment = json.loads((bundle / "bundle.json").read_text())["alignment"]
    card = (bundle / "MODEL_CARD.md").read_text().split("## Alignment\n")[1]
    if file != "model.npz":
        named = {"layers": [0], "heads": [0], "shift": 0, "guided": True}
        assert alignment.items() >= named.items()
        assert "head 0 of layer 0, as training guided it" in card
    elif alignment is not None and "guided" in alignment:
        assert alignment["agreement"] >= alignment["second"]["agreement"] - 0.05
    else:
        assert "as training guided it" not in card
