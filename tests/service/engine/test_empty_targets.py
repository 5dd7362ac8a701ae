"""Targets without a token: the rules allowed none at the first step."""

from dataclasses import replace

import pytest

from service.attention import Head
from tests.service.engine.engines import (
    ONE_WORKER,
    answers,
    assert_same,
    entry,
    running,
    with_alignment,
)


@pytest.mark.parametrize("prefix", [(), (6, 4, 9)], ids=str)
@pytest.mark.parametrize("measure", ["weight", "norm"])
@pytest.mark.parametrize("ablated", [(), (Head("cross", 0, 0),)], ids=["whole", "ablated"])
@pytest.mark.parametrize("aligns", [False, True])
def test_a_target_without_a_token_is_attended_alone_and_beside_others(
    tiny_bundle, every_weight, prefix, measure, ablated, aligns
):
    """The decoder has read what stands before it; no step has predicted a token."""
    bundle = with_alignment(tiny_bundle)
    selection = every_weight(bundle)._replace(measure=measure)
    options = {"selection": selection, "ablated": ablated, "aligns": aligns}
    plain = entry([4, 5, 6], 9, **options)
    nothing = plain._replace(
        search=plain.search._replace(
            suppress_tokens=tuple(range(bundle.manifest.config.target_vocab_size)),
            target_prefix=prefix,
            top_log_probs=3,
        )
    )
    with running(bundle, ONE_WORKER) as engine:
        alone = answers(engine, [nothing]) + answers(engine, [plain])
        beside = answers(engine, [nothing, plain])
    assert_same(beside, alone)
    (hypothesis,), (attention,) = alone[0].hypotheses, alone[0].attention
    assert hypothesis.token_ids == []
    assert hypothesis.top_log_probs.shape == (0, 3)
    config = bundle.manifest.config
    rows = (len(selection.layers["cross"]), config.num_heads, 0)
    assert attention["cross"].shape == (*rows, 3)
    assert attention["decoder"].shape == (*rows, 1 + len(prefix))
    if aligns:
        assert [each.shape for each in alone[0].alignment] == [(len(prefix), 3)]


@pytest.mark.parametrize("starts", [1, 2, 3])
@pytest.mark.parametrize("ablated", [(), (Head("cross", 0, 0),)], ids=["whole", "ablated"])
def test_a_target_without_a_token_has_no_log_probs(tiny_bundle, starts, ablated):
    """However many ids the decoder starts with, alone and beside a target with tokens."""
    manifest = tiny_bundle.manifest.model_copy(update={"decoder_start": [1, 5, 6][:starts]})
    plain = entry([4, 5, 6], target_ids=[7, 8, 9], scores=True, ablated=ablated)
    nothing = plain._replace(target_ids=[])
    with running(replace(tiny_bundle, manifest=manifest), ONE_WORKER) as engine:
        alone = answers(engine, [nothing]) + answers(engine, [plain])
        assert_same(answers(engine, [nothing, plain]), alone)
    assert [each.log_probs.shape for each in alone] == [(0,), (3,)]
