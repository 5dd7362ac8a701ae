"""Bundles with an SSRU decoder, served over HTTP, compared with an oracle in NumPy."""

import numpy as np
import pytest

from tests.conftest import opened
from tests.model.importers.served import post
from tests.model.ssru.conftest import write_random
from tests.model.ssru.oracle import Oracle

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
LENGTHS = [(7, 5), (1, 1), (40, 9), (3, 40), (12, 17)]  # of sources and targets, up to the limits
BEAM_SIZES = [1, 2, 5]
MOST = 30  # tokens of a hypothesis


def pairs_of(config, lengths=LENGTHS, seed=0):
    random = np.random.default_rng(seed)
    sizes = config["source_vocab_size"], config["target_vocab_size"]
    return [
        tuple(random.integers(4, size, n).tolist() for n, size in zip(pair, sizes, strict=True))
        for pair in lengths
    ]


def assert_scores(oracle, pairs, results):
    for (source, target), result in zip(pairs, results, strict=True):
        np.testing.assert_allclose(
            result["log_probs"], oracle.score(source, target)[0], **TOLERANCE
        )


def assert_attention(oracle, pairs, results):
    for (source, target), result in zip(pairs, results, strict=True):
        (block,) = (each for each in result["attention"] if each["kind"] == "cross")
        np.testing.assert_allclose(block["data"], oracle.score(source, target)[1], **TOLERANCE)


def assert_hypotheses(found, expected):
    """Compare scores, and ids unless two hypotheses are as good as each other."""
    for ours, (score, ids) in zip(found["hypotheses"], expected, strict=True):
        np.testing.assert_allclose(ours["score"], score, **TOLERANCE)
        near = [each for each, _ in expected if abs(each - score) < 1e-4]
        if len(near) == 1:
            assert ours["token_ids"] == ids


def assert_decoding(client, oracle, sources, beam_size):
    """Decode the sources together, and each alone."""
    options = {"beam_size": beam_size, "num_hypotheses": beam_size, "max_new_tokens": MOST}
    together = post(client, "/v1/decode", source=sources, **options)
    for source, mixed in zip(sources, together, strict=True):
        expected = oracle.beam_search(source, beam_size, MOST)
        assert_hypotheses(mixed, expected)
        (alone,) = post(client, "/v1/decode", source=[source], **options)
        assert_hypotheses(alone, expected)


def assert_all_answers(bundle):
    """Score, attend and decode in batches of sources of all lengths, and each source alone."""
    oracle = Oracle(bundle)
    pairs = pairs_of(oracle.config)
    sources, targets = map(list, zip(*pairs, strict=True))
    with opened(bundle, precision="fp32") as client:
        assert_scores(oracle, pairs, post(client, "/v1/score", source=sources, target=targets))
        body = {"attention": {"kinds": ["encoder", "cross"]}, "target": targets}
        assert_attention(oracle, pairs, post(client, "/v1/attention", source=sources, **body))
        for beam_size in BEAM_SIZES:
            assert_decoding(client, oracle, sources, beam_size)


def test_answers_are_those_of_numpy(recurrent):
    assert_all_answers(recurrent)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 21))
def test_random_networks_answer_like_numpy(tmp_path, seed):
    assert_all_answers(write_random(seed, tmp_path / "random"))
