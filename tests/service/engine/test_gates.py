"""Heads that entries switch off."""

from dataclasses import replace

import numpy as np
import pytest

from service.attention import Head
from service.bundle.manifest import load_bundle
from tests.service.engine.engines import ONE_WORKER, answers, assert_same, entry, running

KINDS = ("encoder", "decoder", "cross")


def every_head(bundle, kind):
    config = bundle.manifest.config
    layers = config.num_encoder_layers if kind == "encoder" else config.num_decoder_layers
    return tuple(
        Head(kind, layer, head) for layer in range(layers) for head in range(config.num_heads)
    )


def without_gates(bundle):
    """The bundle as an older export wrote it."""
    precisions = {
        precision: {name: file for name, file in graphs.items() if not name.startswith("gated")}
        for precision, graphs in bundle.manifest.precisions.items()
    }
    manifest = bundle.manifest.model_copy(update={"precisions": precisions})
    return replace(bundle, manifest=manifest)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_and_steps_lose_the_same_heads(tiny_bundle, kind):
    """Scoring what was decoded gives the log-probs of decoding it."""
    off = every_head(tiny_bundle, kind)[::2]
    with running(tiny_bundle) as engine:
        decoded, open_answer = answers(
            engine, [entry([4, 5, 6], 8, ablated=off), entry([4, 5, 6], 8)]
        )
        ids = decoded.hypotheses[0].token_ids
        asked = [entry([4, 5, 6], target_ids=ids, scores=True, ablated=each) for each in (off, ())]
        scored, open_score = answers(engine, asked)
    found = decoded.hypotheses[0].log_probs
    np.testing.assert_allclose(scored.log_probs, found, rtol=1e-4, atol=1e-5)
    assert np.abs(open_score.log_probs - scored.log_probs).max() > 1e-3
    assert not np.allclose(open_answer.hypotheses[0].log_probs[0], found[0], atol=1e-4)


def test_without_any_cross_attention_the_source_changes_nothing(tiny_bundle):
    off = every_head(tiny_bundle, "cross")
    sources = [[4, 5, 6], [7, 8]]
    with running(tiny_bundle) as engine:
        first, second = answers(engine, [entry(each, 8, 2, ablated=off) for each in sources])
    assert_same([first], [second])


def test_gated_graphs_are_opened_only_by_entries_that_need_them(tiny_bundle, every_weight):
    with running(tiny_bundle, ONE_WORKER) as engine:
        opened, open_graph = [], engine.session.open

        def recorded(graph):
            opened.append(graph)
            return open_graph(graph)

        engine.session.open = recorded
        asked = {"target_ids": [5, 6], "scores": True, "selection": every_weight(tiny_bundle)}
        answers(engine, [entry([4, 5], 5, 2), entry([4, 5], **asked)])
        assert not [graph for graph in opened if graph.startswith("gated")]
        answers(engine, [entry([4, 5], 5, ablated=(Head("decoder", 0, 0),))])
        assert {graph for graph in opened if graph.startswith("gated")} == {"gated_step"}


def test_a_bundle_without_gated_graphs_answers_all_else(tiny_bundle, every_weight):
    asked = [entry([4, 5, 6], 8, 2, selection=every_weight(tiny_bundle))]
    with running(tiny_bundle) as engine, running(without_gates(tiny_bundle)) as older:
        assert_same(answers(engine, asked), answers(older, asked))
        assert engine.opened.graphs - older.opened.graphs == {
            "gated_encoder",
            "gated_step",
            "gated_decoder",
        }


def test_int8_batches_with_and_without_ablation_are_alike_bit_for_bit(g2p):
    """A neighbour's tokens and log-probs do not depend on the gates of others."""
    bundle = load_bundle(g2p)
    plain = [entry([*range(4, 4 + n)], 12) for n in range(1, 8)]
    gated = [entry([9, 8, 7], 12, ablated=every_head(bundle, "cross")[::3]) for _ in range(4)]
    with running(bundle, ONE_WORKER) as engine:
        alone = answers(engine, plain)
        mixed = answers(engine, [each for pair in zip(plain, gated, strict=False) for each in pair])
    for one, other in zip(mixed[::2], alone, strict=False):
        assert one.hypotheses[0].token_ids == other.hypotheses[0].token_ids
        np.testing.assert_array_equal(one.hypotheses[0].log_probs, other.hypotheses[0].log_probs)
