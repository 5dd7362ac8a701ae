import dataclasses

import numpy as np
import pytest

from service.search.protocol import Hypothesis
from service.wire.messages import Answer

PLAIN = Hypothesis([5, 6, 2], [-0.1, -0.2, -0.3], "eos")
ALTERNATIVES = dataclasses.replace(PLAIN, top_log_probs=[[(5, -0.1), (6, -2.0)], [(6, -0.2)], []])


@pytest.mark.parametrize(
    ("answer", "size"),
    [
        (Answer(), 0),
        (Answer(memory=np.zeros((3, 4))), 12),
        (Answer(hypotheses=[PLAIN, PLAIN]), 6),
        (Answer(hypotheses=[PLAIN], attention=[{"cross": np.zeros((2, 3))}]), 9),
        (Answer(log_probs=np.zeros(7)), 7),
        (Answer(hypotheses=[ALTERNATIVES]), 3 + 3 * 3),
    ],
)
def test_the_size_of_an_answer_counts_what_takes_time_to_write(answer, size):
    """An alternative token is written with its text and its log-prob: as long as three numbers."""
    assert answer.size == size
