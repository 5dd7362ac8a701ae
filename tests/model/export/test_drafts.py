"""The graph that reads several tokens a row, compared with the step that reads one."""

import numpy as np
import pytest

from service.bundle.manifest import load_bundle
from service.runtime.session import Session
from service.search.rules import log_softmax
from service.settings.settings import Provider, Settings

# int8 may round an activation to its neighbour, and fp16 a sum
TOLERANCES = {"fp32": (1e-4, 1e-5), "int8": (0, 5e-3), "fp16": (0, 2e-2)}
# tokens that rows keep of those they read; the first 16 fill a new cache
READ = np.array([[16, 3, 8], [4, 1, 5], [1, 6, 1]])


@pytest.mark.parametrize("together", [[0, 1, 2], [0], [1], [2]], ids=str)
@pytest.mark.parametrize("precision", TOLERANCES)
def test_several_tokens_at_once_have_the_log_probs_of_single_steps(exported, precision, together):
    """Rows are at different positions, and read again what they do not keep. A row that is alone
    reads them by another graph than several."""
    folder, model = exported
    random, config = np.random.default_rng(0), model.config
    session = Session(load_bundle(folder), Settings(precision=precision, provider=Provider.cpu))
    sources = [random.integers(4, config.source_vocab_size, size) for size in (6, 1, 9)]
    longest = config.max_target_length
    targets = random.integers(4, config.target_vocab_size, (3, longest))
    _, cross = session.encode(sources)
    steps, drafted = session.new_cache(1), session.new_cache(1)
    steps.insert(cross)
    drafted.insert(cross.pick(together))
    expected = np.stack(
        [log_softmax(session.step(steps, tokens, 1, logits=True).logits) for tokens in targets.T], 1
    )[together]  # (R, longest, V)
    targets = targets[together]
    relative, absolute = TOLERANCES[precision]
    while (drafted.position < longest).any():
        for kept in READ[:, together]:
            count = kept.max()
            if len(together) == 1:
                count = min(count, longest - drafted.position[0])  # it has no row to fill up to
            places = np.minimum(drafted.position[:, None] + np.arange(count), longest - 1)
            tokens = np.take_along_axis(targets, places, 1)  # (R, count)
            logits = session.draft_step(drafted, tokens, 1, logits=True).logits
            found = log_softmax(logits).reshape(len(together), count, -1)
            for row, number in enumerate(np.minimum(kept, longest - drafted.position)):
                own = places[row, :number]
                theirs = expected[row, own]
                np.testing.assert_allclose(found[row, :number], theirs, relative, absolute)
            drafted.position[:] = np.minimum(drafted.position + kept, longest)
            if (drafted.position == longest).all():
                break
