"""The model's own alignment, against NumPy over all cross-attention."""

import numpy as np
import pytest

from service.search.options import SearchOptions
from service.settings.settings import Precision
from service.wire import Entry
from tests.service.engine.engines import (
    ONE_WORKER,
    answers,
    assert_close,
    entry,
    running,
    with_alignment,
)

SOURCES = [[4, 5, 6, 7], [9, 8], [7], [5, 5, 6, 9, 4, 8, 7]]


def expected(engine, every_weight, bundle, source, target):
    """The rows of the steps that predict (shift 0) or read (shift 1) the tokens of a target."""
    alignment = bundle.manifest.alignment
    whole = [*target, 4]  # any token may follow the last: no row depends on it
    selection = every_weight(bundle, ["cross"])
    (answer,) = answers(engine, [entry(source, target_ids=whole, selection=selection)])
    picked = answer.attention[0]["cross"][alignment.layers][:, alignment.heads].mean((0, 1))
    return picked[alignment.shift :][: len(target)]


@pytest.mark.parametrize("precision", [Precision.fp32, Precision.int8])
@pytest.mark.parametrize("shift", [0, 1])
def test_rows_are_those_of_the_steps(g2p_bundle, every_weight, shift, precision):
    """Of every hypothesis, of a given target, and alone as with neighbours."""
    bundle = with_alignment(g2p_bundle, layers=[0, 2], heads=[3, 1], shift=shift)
    settings = ONE_WORKER.model_copy(update={"precision": precision})
    with running(bundle, settings) as engine:
        asked = [entry(source, 9, beams, aligns=True) for source in SOURCES for beams in (1, 3)]
        asked += [
            entry(source, target_ids=[9, 8, 7], aligns=True, scores=True) for source in SOURCES
        ]
        alone = [answers(engine, [one])[0] for one in asked]
        for one, answer, single in zip(asked, answers(engine, asked), alone, strict=True):
            targets = [each.token_ids for each in answer.hypotheses] or [one.target_ids]
            for target, found, other in zip(
                targets, answer.alignment, single.alignment, strict=True
            ):
                rows = expected(engine, every_weight, bundle, one.source_ids, target)
                assert found.dtype == np.float32
                assert_close(found, rows)
                assert_close(found, other)


@pytest.mark.parametrize("shift", [0, 1])
def test_a_target_prefix_has_rows_too(tiny_bundle, every_weight, shift):
    bundle = with_alignment(tiny_bundle, shift=shift)
    prefix = (5, 6, 7)
    with running(bundle) as engine:
        search = SearchOptions(max_new_tokens=4, min_new_tokens=4, target_prefix=prefix)
        (answer,) = answers(engine, [Entry(np.array([4, 5, 6]), search, aligns=True)])
        target = answer.hypotheses[0].token_ids
        rows = expected(engine, every_weight, bundle, [4, 5, 6], [*prefix, *target])
    assert_close(answer.alignment[0], rows)
    assert rows.shape == (7, 3)


@pytest.mark.parametrize("shift", [0, 1])
def test_attention_with_an_alignment_is_what_it_is_without(tiny_bundle, every_weight, shift):
    bundle = with_alignment(tiny_bundle, shift=shift)
    with running(bundle) as engine:
        asked = {"target_ids": [5, 6, 7], "selection": every_weight(bundle)}
        both = [entry([4, 5, 6], **asked), entry([4, 5, 6], aligns=True, **asked)]
        without, aligned = answers(engine, both)
    assert (len(without.alignment), len(aligned.alignment)) == (0, 1)
    for kind, weights in without.attention[0].items():
        assert_close(aligned.attention[0][kind], weights)


def test_the_last_token_of_a_target_that_takes_all_positions(tiny_bundle, every_weight):
    """No step can read it: it has the row of the step that predicts it."""
    bundle = with_alignment(tiny_bundle, shift=1)
    target = [*range(4, 12)] * 5
    assert len(target) == bundle.manifest.target_positions
    with running(bundle) as engine:
        selection = every_weight(bundle, ["cross"])
        asked = entry([4, 5], target_ids=target, aligns=True, selection=selection)
        (answer,) = answers(engine, [asked])
    cross = answer.attention[0]["cross"][[1]][:, [2, 0]].mean((0, 1))
    assert_close(answer.alignment[0], [*cross[1:], cross[-1]])


def test_a_request_without_alignment_has_no_more_work(tiny_bundle, every_weight):
    bundle = with_alignment(tiny_bundle, shift=1)
    with running(bundle, ONE_WORKER) as engine:
        engine.session.open("attention")
        passes, attend = [], engine.session.attention

        def recorded(inputs, *others):
            passes.extend(len(each) for each in inputs)
            return attend(inputs, *others)

        engine.session.attention = recorded
        shown = {"target_ids": [5, 6], "selection": every_weight(bundle, ["cross"])}
        answers(engine, [entry([4, 5], 5), entry([4, 5], **shown)])
        answers(engine, [entry([4, 5], target_ids=[5, 6], aligns=True)])
    assert passes == [2, 3]  # of the two that asked
