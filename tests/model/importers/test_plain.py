"""Models of one's own give our network the same numbers: torch.nn.Transformer inside a module, and
the paper's formulas with the names of The Annotated Transformer."""

import numpy as np
import pytest

from model.importers.checkpoint import Checkpoint
from model.importers.networks.plain import read_plain
from model.network.config import Tied
from tests.model.importers.annotated import Annotated
from tests.model.importers.plain_models import (
    LONGEST,
    SOURCES,
    TARGETS,
    USE,
    assert_same_numbers,
    randomize,
    record,
    save,
    translator,
    write,
)

SEEDS = [*range(2), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 20))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("positions", ["own", "buffer", "computed"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_log_probs_and_attention_are_those_of_torch(tmp_path, norm_first, positions, seed):
    theirs, keys = translator(seed, norm_first, positions)
    for modules in theirs.attentions():
        for module in modules:
            record(module)
    write(tmp_path, **keys, **save(theirs.state_dict(), tmp_path, seed))
    ours = read_plain(Checkpoint(tmp_path))
    assert_same_numbers(ours, theirs, [7, 2, 12], [5, 9, 1], seed)
    assert_same_numbers(ours, theirs, [LONGEST, 3], [2, LONGEST], seed)  # the last positions


@pytest.mark.parametrize("seed", SEEDS)
def test_log_probs_and_attention_are_those_of_the_annotated_transformer(tmp_path, seed):
    random = np.random.default_rng(seed)
    heads, depths = int(random.integers(1, 4)), random.integers(1, 4, 2).tolist()
    size, tied = 4 * heads * int(random.integers(1, 4)), list(Tied)[int(random.integers(4))]
    targets = SOURCES if tied in (Tied.all, Tied.embeddings) else TARGETS
    theirs = randomize(Annotated((SOURCES, targets), depths, heads, size, tied), seed)
    start = {"transformer": "module."} if seed % 2 else {}
    state = {start.get("transformer", "") + name: x for name, x in theirs.state_dict().items()}
    saved = save(state, tmp_path, seed)
    write(tmp_path, kind="annotated", num_heads=heads, **start, **USE, **saved)
    ours = read_plain(Checkpoint(tmp_path))
    assert ours.config.tied is tied
    assert_same_numbers(ours, theirs, [7, 2, 12], [5, 9, 1], seed)
    assert_same_numbers(ours, theirs, [LONGEST, 3], [2, LONGEST], seed)
