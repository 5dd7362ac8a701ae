"""Checkpoints of random sizes and weights are converted, served, and give Hugging Face's numbers.

Each is compared as HTTP answers: the log-prob of every token and every attention weight, of a
ragged batch that reaches the last position of a table, or distances beyond T5's longest. The first
of each kind also has the graphs that no answer here needs: the service checks them as it opens.
"""

from contextlib import nullcontext

import numpy as np
import pytest

from tests.conftest import opened
from tests.model.importers.checkpoints import SHAPES, store
from tests.model.importers.kinds import LANGUAGES, T5, WRITERS, banned
from tests.model.importers.random_models import random_bart, random_t5
from tests.model.importers.served import assert_same_answers, convert, start_of
from tests.tracing import only

pytestmark = pytest.mark.long
FAMILIES = [kind for kind in WRITERS if kind not in ("nllb", "mbart50", "madlad")]  # other ids only
COMPARED = ("encoder", "step", "score", "attention", "encoder_attention")


def random_pairs(random, lengths, vocabulary):
    top = min(1300, vocabulary)
    return [[random.integers(5, top, n).tolist() for n in pair] for pair in lengths]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_those_of_hugging_face(tmp_path, family, seed):
    random = np.random.default_rng(seed)
    folder, languages = tmp_path / "checkpoint", LANGUAGES.get(family, {})
    folder.mkdir()
    changes = (random_t5 if family in T5 else random_bart)(random)
    if random.integers(2):
        changes["extra_rows"] = 103 + int(random.integers(9))
    theirs = WRITERS[family](folder, seed, **changes)
    store(theirs, folder, SHAPES[seed % 3])
    with only(*COMPARED) if seed else nullcontext():
        bundle = convert(folder)
    start = start_of(bundle, languages)
    longest = (300, 140) if family in T5 else (changes["max_position_embeddings"],) * 2
    lengths = [(7, 5), (2, 9), (longest[0], 3), (4, longest[1] + 1 - len(start))]
    pairs = random_pairs(random, lengths, theirs.config.vocab_size)
    with opened(bundle, precision="fp32") as client:
        assert_same_answers(client, theirs, pairs, bundle, languages, banned(family, theirs))
