"""The graph that reads several tokens a row, compared with the step that reads one."""

import numpy as np
import pytest

from service.bundle.manifest import load_bundle
from service.runtime.session import Session
from service.search.rules import log_softmax
from service.settings.settings import Provider, Settings

# int8 may round an activation to its neighbour, and fp16 a sum
TOLERANCES = {"fp32": (1e-4, 1e-5), "int8": (0, 5e-3), "fp16": (0, 2e-2)}
READ = [[1, 3, 8], [4, 1, 5], [2, 6, 1]]  # tokens that each row keeps of those it reads


@pytest.mark.parametrize("precision", TOLERANCES)
def test_several_tokens_at_once_have_the_log_probs_of_single_steps(exported, precision):
    """Rows are at different positions, and read again what they do not keep."""
    folder, model = exported
    random, config = np.random.default_rng(0), model.config
    session = Session(load_bundle(folder), Settings(precision=precision, provider=Provider.cpu))
    sources = [random.integers(4, config.source_vocab_size, size) for size in (6, 1, 9)]
    targets = random.integers(4, config.target_vocab_size, (3, 32))  # up to the last position
    _, cross = session.encode(sources)
    steps, drafted = session.new_cache(1), session.new_cache(1)
    steps.insert(cross)
    drafted.insert(cross)
    expected = np.stack(
        [log_softmax(session.step(steps, tokens, 1, logits=True).logits) for tokens in targets.T], 1
    )  # (3, 32, V)
    relative, absolute = TOLERANCES[precision]
    while (drafted.position < 32).any():
        for kept in READ:
            count = max(kept)
            places = np.minimum(drafted.position[:, None] + np.arange(count), 31)
            tokens = np.take_along_axis(targets, places, 1)  # (3, count)
            logits = session.draft_step(drafted, tokens, 1, logits=True).logits
            found = log_softmax(logits).reshape(3, count, -1)
            for row, number in enumerate(np.minimum(kept, 32 - drafted.position)):
                own = places[row, :number]
                theirs = expected[row, own]
                np.testing.assert_allclose(found[row, :number], theirs, relative, absolute)
            drafted.position[:] = np.minimum(drafted.position + kept, 32)
