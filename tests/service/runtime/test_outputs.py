"""The rows of a batch's tokens are those of the matrix, whatever comes and goes."""

import numpy as np
import pytest

from service.runtime.outputs import PADDED, SPARE, Outputs

VOCABULARY, WIDTH = 3000, 3


@pytest.mark.parametrize("seed", range(6))
def test_each_source_has_its_own_tokens_and_no_others(seed):
    random = np.random.default_rng(seed)
    matrix = random.normal(size=(VOCABULARY, WIDTH)).astype(np.float32)
    bias = random.normal(size=VOCABULARY).astype(np.float32)
    outputs = Outputs(lambda ids: (matrix[ids], bias[ids]), WIDTH, VOCABULARY)
    sources, memory = [], None
    for _ in range(60):
        if sources and random.random() < 0.5:
            keep = random.permutation(len(sources))[: random.integers(0, len(sources) + 1)]
            moved = outputs.compact(keep)
            sources = [sources[i] for i in keep]
        else:
            most = random.choice([10, 300, 2000])
            new = [
                np.sort(random.choice(VOCABULARY, random.integers(1, most), replace=False))
                for _ in range(random.integers(1, 6))
            ]
            moved = outputs.insert(new)
            sources += new
        assert_right(outputs, sources, matrix, bias)
        if not moved:  # what was bound to this memory still is
            assert addresses(outputs) == memory
        memory = addresses(outputs)


def addresses(outputs):
    return [each.__array_interface__["data"] for each in (outputs.rows, outputs.biases)]


def assert_right(outputs, sources, matrix, bias):
    assert outputs.biases.shape == (len(sources), len(outputs.tokens))
    for source, biases in zip(sources, outputs.biases, strict=True):
        columns = np.flatnonzero(biases > -np.inf)
        tokens = outputs.tokens[columns]
        assert sorted(tokens.tolist()) == source.tolist()
        np.testing.assert_array_equal(outputs.rows[columns], matrix[tokens])
        np.testing.assert_array_equal(biases[columns], bias[tokens])
    if sources:
        held, needed = len(outputs.tokens), sum(map(len, sources))
        assert PADDED <= held <= SPARE * max(needed, PADDED)
        assert held < VOCABULARY + PADDED


def test_logits_are_those_of_all_tokens():
    outputs = Outputs(lambda ids: (np.ones((len(ids), WIDTH)), np.zeros(len(ids))), WIDTH, 500)
    outputs.insert([np.array([3, 400]), np.array([7])])
    logits = np.arange(2 * len(outputs.tokens), dtype=np.float32).reshape(2, -1)
    found = outputs.scatter(logits)
    assert found.shape == (2, 500)
    assert {*np.flatnonzero(np.isfinite(found[0]))} == {3, 7, 400}
    for column, token in enumerate(outputs.tokens[:3]):
        assert (found[:, token] == logits[:, column]).all()
