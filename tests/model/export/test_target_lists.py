"""A model with lists of tokens of its languages writes what masked log-probs give."""

import json
import random
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from model.checkpoint import TrainedModel
from model.data.tokenizers import UNK, Unit, build_tokenizer
from model.export import bundle as bundles
from model.export.bundle import WeightType, write_bundle
from model.export.files.manifest import Card, Precision
from model.export.graphs import wrappers
from model.network.config import Tied, TransformerConfig
from model.network.transformer import Transformer
from model.usage import plain_usage
from service.attention import Head
from service.bundle.manifest import load_bundle
from service.errors import StartupError
from service.runtime.self_check import check_parity
from service.runtime.session import Session
from service.runtime.target_lists import read_tokens
from service.search.options import SearchOptions
from service.search.phrases import Phrase, Requirement
from service.settings.settings import Provider, Settings
from service.wire import Entry
from tests.conftest import edit_manifest, opened
from tests.service.engine.engines import answers, running
from tests.service.engine.mixes import assert_as_alone

EXPORTED = ("encoder", "step", "gated_step")  # of the graphs that other models have too
SIZE, MOST = 30, 12
CODES = {"short": [4], "whole": [5], "none": [6]}  # the ids of languages
LISTS = {"short": np.array([1, 2, 4, 7, 8, 11, 12, 16, 19, 23, 24, 27]), "whole": np.arange(SIZE)}
SHORT = {*LISTS["short"].tolist()}
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    """A bundle at fp32 and int8 with a list of some tokens, one of all, and a language without."""
    torch.manual_seed(3)
    tokenizer = build_tokenizer(["abcdefghijklmnopqrstuvwxyz"], Unit.characters)
    assert tokenizer.get_vocab_size() == SIZE
    sizes = {"source_vocab_size": SIZE, "target_vocab_size": SIZE, "d_model": 32, "d_ff": 48}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 2, "num_heads": 2}
    config = TransformerConfig(
        **sizes,
        **layers,
        tied=Tied.all,
        norm_first=True,
        max_source_length=40,
        max_target_length=40,
    )
    model = Transformer(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.4)
    usage = replace(
        plain_usage(config, tokenizer.token_to_id(UNK)),
        decoder_start=[config.bos_id, "target_language"],
        target_languages=CODES,
        target_lists=LISTS,
        max_new_tokens=MOST,
    )
    folder = tmp_path_factory.mktemp("lists") / "listed"
    trained = TrainedModel(model, tokenizer, tokenizer, usage)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wrappers, "GRAPHS", {name: wrappers.GRAPHS[name] for name in EXPORTED})
        patch.setattr(bundles, "write_alignment", lambda *_: None)
        write_bundle(trained, Card(name="lists"), WeightType.fp32, folder, Precision.both)
    return folder


@pytest.fixture(scope="module")
def plain(listed, tmp_path_factory):
    """The same bundle without its lists, whose log-probs are normalized again after bans."""
    shutil.copytree(listed, folder := tmp_path_factory.mktemp("plain") / "plain")
    path = folder / "bundle.json"
    manifest = json.loads(path.read_text())
    del manifest["target_lists"]
    manifest["decoding"]["renormalize"] = True
    path.write_text(json.dumps(manifest))
    return folder


def settings(precision="fp32"):
    return Settings(precision=precision, provider=Provider.cpu, threads=2)


def entry(language, source, **options):
    wanted = {"max_new_tokens": MOST} | options
    return Entry(np.array(source), SearchOptions(**wanted), language=(*CODES[language],))


def draw_source(random_):
    return random_.choices(range(4, SIZE), k=random_.randint(1, 12))


def draw_sources(count):
    random_ = random.Random(count)
    return [draw_source(random_) for _ in range(count)]


def masked_greedy(session, language, source, listed):
    """Return the ids and log-probs of greedy search over some tokens, from logits of all."""
    _, cross = session.encode([np.array(source)])
    cache = session.new_cache(1)
    cache.insert(cross)
    mask = np.full(SIZE, -np.inf)
    mask[[*listed]] = 0
    read, ids, log_probs = [1, *CODES[language]], [], []
    for position in range(len(read) + MOST - 1):
        token = [*read, *ids][position]
        logits = session.step(cache, np.array([token]), 1, logits=True).logits[0]
        if position + 1 < len(read):
            continue
        masked = logits.astype(float) + mask
        best = int(masked.argmax())
        log_probs.append(masked[best] - np.log(np.exp(masked - masked.max()).sum()) - masked.max())
        ids.append(best)
        if best == 2:
            break
    return ids, log_probs


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_every_graph_has_torchs_numbers(listed, precision):
    bundle = load_bundle(listed)
    session = Session(bundle, settings(precision))
    check_parity(session, bundle)
    assert not session.supports("step")  # the decoder's weights would be there twice
    assert session.target_lists.keys() == {(4,), (5,)}
    for graph in ("output", "gated_step"):
        session.open(graph)  # raises if it differs
    for each in session.target_lists.values():
        each.output.open()


@pytest.mark.parametrize("language", CODES)
def test_greedy_search_is_that_of_masked_log_probs(listed, plain, language):
    """Whatever other languages are decoded with."""
    oracle = Session(load_bundle(plain), settings())
    sources = draw_sources(8)
    others = [entry(each, source) for each in CODES for source in sources if each != language]
    with running(load_bundle(listed), settings()) as engine:
        mixed = answers(engine, [*(entry(language, each) for each in sources), *others])
    written = set()
    for source, answer in zip(sources, mixed, strict=False):
        (hypothesis,) = answer.hypotheses
        tokens = LISTS.get(language, range(SIZE))
        ids, log_probs = masked_greedy(oracle, language, source, tokens)
        assert hypothesis.token_ids == ids
        np.testing.assert_allclose(hypothesis.log_probs, log_probs, **TOLERANCE)
        written |= {*ids}
    assert (written <= SHORT) == (language == "short")  # the list changes what is written


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 3, "num_hypotheses": 3},
        {"temperature": 1.3, "num_hypotheses": 4, "seed": 5},
        {"temperature": 0.8, "top_k": 4, "seed": 6},
        {"top_log_probs": 20},
        {"beam_size": 3, "required": (Requirement("", (Phrase((8,)), Phrase((27, 19)))),)},
    ],
)
def test_options_act_as_if_the_other_tokens_were_banned(listed, plain, options):
    banned = tuple(sorted({*range(SIZE)} - SHORT))
    sources = draw_sources(6)
    lists = [entry("short", each, **options) for each in sources]
    bans = [
        entry("short", each, **options, suppress_tokens=banned, renormalize=True)
        for each in sources
    ]
    with running(load_bundle(listed), settings()) as engine:
        ours = answers(engine, lists)
    with running(load_bundle(plain), settings()) as engine:
        theirs = answers(engine, bans)
    for one, other in zip(ours, theirs, strict=True):
        for found, expected in zip(one.hypotheses, other.hypotheses, strict=True):
            assert found.token_ids == expected.token_ids
            np.testing.assert_allclose(found.log_probs, expected.log_probs, **TOLERANCE)
            if "top_log_probs" in options:
                possible = found.top_log_probs["log_prob"] > -np.inf
                assert {*found.top_log_probs["id"][possible].tolist()} == SHORT


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_list_of_all_tokens_changes_nothing(listed, plain, precision):
    entries = [entry("whole", each, beam_size=2) for each in draw_sources(6)]
    with running(load_bundle(listed), settings(precision)) as engine:
        ours = answers(engine, entries)
    with running(load_bundle(plain), settings(precision)) as engine:
        theirs = answers(engine, entries)
    for one, other in zip(ours, theirs, strict=True):
        (found,), (expected,) = one.hypotheses, other.hypotheses
        assert found.token_ids == expected.token_ids
        np.testing.assert_allclose(found.log_probs, expected.log_probs, **TOLERANCE)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_answers_are_those_of_each_request_alone(listed, precision):
    random_ = random.Random(4)
    wanted = [
        entry(random_.choice([*CODES]), draw_source(random_), beam_size=random_.choice([1, 1, 2]))
        for _ in range(60)
    ]
    assert_as_alone(load_bundle(listed), precision, wanted, random_)


def test_entries_that_name_tokens_or_switch_heads_off_have_all(listed, plain):
    unlisted = 9
    source = draw_sources(1)[0]
    required = {"beam_size": 2, "required": (Requirement("f", (Phrase((unlisted,)),)),)}
    named = [
        entry("short", source, allowed_targets=((unlisted, 2),)),
        entry("short", source, **required),
    ]
    off = (Head("cross", 0, 0),)
    ablated = [entry("short", each)._replace(ablated=off) for each in draw_sources(6)]
    with running(load_bundle(listed), settings()) as engine:
        for answer in answers(engine, named):
            assert unlisted in answer.hypotheses[0].token_ids
        ours = answers(engine, ablated)
    with running(load_bundle(plain), settings()) as engine:
        theirs = answers(engine, ablated)
    found, expected = (
        [each.hypotheses[0].token_ids for each in answered] for answered in (ours, theirs)
    )
    assert found == expected
    assert not {token for ids in found for token in ids} <= SHORT


def test_a_service_tells_the_lists_and_refuses_drafts(listed):
    with opened(listed, precision="int8") as client:
        (model,) = client.get("/v1/models").json()["models"]
        assert model["languages"]["target_lists"] == {"short": len(SHORT), "whole": SIZE}
        assert model["drafts"] is False
        body = {"source": "abc", "target_language": "short"}
        (result,) = client.post("/v1/decode", json=body).json()["results"]
        assert {*result["hypotheses"][0]["token_ids"]} <= SHORT
        refused = client.post("/v1/decode", json={**body, "draft": "abc"})
    assert refused.status_code == 404
    assert "lists of tokens, which drafts do not have" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("tokens", "named"),
    [
        (np.array([2, 1]), "short must be ids below 30 that ascend"),
        (np.array([2, 2]), "short must be ids below 30 that ascend"),
        (np.array([2, 30]), "short must be ids below 30 that ascend"),
        (np.array([-1, 2]), "short must be ids below 30 that ascend"),
        (np.array([[2]]), "short must be ids below 30 that ascend"),
        (np.array([], np.int64), "short must be ids below 30 that ascend"),
        (np.array([1, 5]), "short lacks 2, which ends targets"),
        (None, "lacks the array 'short'"),
        (np.array(["x"]), "cannot be used"),
    ],
)
def test_lists_that_contradict_the_model_are_refused(listed, tmp_path, tokens, named):
    path = tmp_path / "target_lists.npz"
    np.savez(path, **({} if tokens is None else {"short": tokens}))
    with pytest.raises(StartupError, match=named):
        read_tokens(path, load_bundle(listed).manifest, ["short"])


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"short": "fp32/listed_whole.onnx"}, "output graph's outputs logits are not"),
        ({"latin": "fp32/listed_short.onnx"}, "latin, which is not a language of targets"),
        ({"short": "fp32/absent.onnx"}, "no entry in .files.: fp32/absent.onnx"),
    ],
)
def test_graphs_that_contradict_the_lists_are_refused(listed, tmp_path, changed, named):
    shutil.copytree(listed, folder := tmp_path / "changed")
    lists = {"tokens": "target_lists.npz", "graphs": {"fp32": changed}}
    edit_manifest(folder, target_lists=lists)
    with pytest.raises(StartupError, match=named):
        Session(load_bundle(folder), settings())


def test_lists_beside_shortlists_are_refused(listed, tmp_path):
    shutil.copytree(listed, folder := tmp_path / "changed")
    edit_manifest(folder, shortlists="target_lists.npz")
    with pytest.raises(StartupError, match="has shortlists and target_lists"):
        load_bundle(folder)
