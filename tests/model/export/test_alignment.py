"""The attention that aligns is found by occlusion, and nothing is claimed where there is none."""

import hashlib
import json
import shutil
import sys
from itertools import pairwise
from math import comb, log
from textwrap import fill

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from model.__main__ import app
from model.checkpoint import load_model
from model.export.alignment.choose import Candidate, Choice, Ranked, candidates, choose, divergence
from model.export.alignment.find import align, describe, find, name_of, say
from model.export.alignment.graphs import Graphs
from model.export.alignment.occlusion import Fill, Labels, clear, occlude
from model.export.alignment.sources import FEWEST, MOST, WORK, spread, weights_of
from service.bundle.files import read_header
from service.bundle.manifest import load_bundle
from tests.conftest import edit_manifest
from tests.service.mutations.edit import edit_json, seal

LONG = pytest.mark.long


def planted(random, layer, head, shift, share):
    """Weights of 3 layers and 4 heads, of which one head looks at the labels with this share."""
    length, target = 9, 12
    for _ in range(20):
        weights = np.eye(length)[random.integers(0, length, (3, 4, target + 1))]
        weights[layer, head] = random.dirichlet(np.ones(length), target + 1)
        rows = np.arange(target)
        columns = random.integers(1, length, target)
        for row in rows[random.random(target) < share]:
            weights[layer, head, row + shift] = 0.5 / length
            weights[layer, head, row + shift, columns[row]] += 0.5  # less than other heads' 1
        yield weights, Labels(rows, columns, np.arange(1, length))


@pytest.mark.parametrize(("layer", "head", "shift"), [(0, 3, 0), (2, 1, 1)])
def test_the_head_that_looks_at_the_right_tokens_is_found(layer, head, shift):
    random = np.random.default_rng(1)
    choice = choose(planted(random, layer, head, shift, 0.8), 3, 4)
    best, second = choice.ranked
    assert best.candidate == Candidate((layer,), (head,), shift)
    assert best.agreement == pytest.approx(0.8 + 0.2 / 8, abs=0.05)
    assert (choice.tokens, choice.sources) == (240, 20)
    assert choice.chance == pytest.approx(1 / 8)
    assert second.agreement <= best.agreement
    assert choice.holds


def two_heads(share):
    """Heads 0 and 3 of layer 1 look at the labels, 0 with this share and 3 with 0.9."""
    return [
        (np.concatenate([few[:, :1], many[:, 1:]], 1), labels)
        for (few, _), (many, labels) in zip(
            planted(np.random.default_rng(1), 1, 0, 0, share),
            planted(np.random.default_rng(1), 1, 3, 0, 0.9),
            strict=True,
        )
    ]


@pytest.mark.parametrize("head", [0, 3])
def test_the_guided_head_aligns_whichever_agrees_most(head):
    choice = choose(two_heads(0.3), 3, 4, Candidate((1,), (head,), 0))
    assert choice.ranked[0].candidate == Candidate((1,), (3,), 0)
    found = describe(choice, 20)
    assert (found["layers"], found["heads"], found["guided"]) == ((1,), (head,), True)
    best = choice.ranked[0] if head == 0 else choice.ranked[1]
    assert found["second"] == best.describe()
    sentence = say(choice, 20, 4)
    assert f"head {head} of layer 1, as training guided it: of 240 target tokens" in sentence
    assert f"the best other, {name_of(best, 4)}, for {best.agreement:.1%}" in sentence


@pytest.mark.parametrize(("share", "taken"), [(0.87, True), (0.7, False), (0.3, False)])
def test_a_head_that_was_perhaps_guided_aligns_if_it_agrees_about_as_often(share, taken):
    given, better = Candidate((1,), (0,), 0), Candidate((1,), (3,), 0)
    choice = choose(two_heads(share), 3, 4, given, surely=False)
    best = choice.ranked[0]
    assert best.candidate == better
    assert (choice.guided.agreement >= best.agreement - 0.05) is taken
    assert best.agreement - 0.1 < choice.guided.agreement < best.agreement or not taken
    found, sentence = describe(choice, 20), say(choice, 20, 4)
    assert found["heads"] == ((0,) if taken else (3,))
    assert found.get("guided", False) is taken
    agreement = f"{choice.guided.agreement:.1%}"
    if taken:
        assert found["second"] == best.describe()
        assert "head 0 of layer 1, which the checkpoint names for it: of 240" in sentence
        assert f"the best other, head 3 of layer 1, for {best.agreement:.1%}" in sentence
    else:
        assert found["second"] == choice.ranked[1].describe()
        assert sentence.startswith("Targets are aligned by head 3 of layer 1: of 240")
        ending = f"head 0 of layer 1 for it, which finds it for {agreement}: training hardly"
        assert ending in sentence


def test_a_head_that_was_perhaps_guided_is_not_claimed_where_nothing_aligns():
    pairs = [*planted(np.random.default_rng(0), 0, 0, 0, 0)]
    best = choose(pairs, 3, 4).ranked[0].candidate
    choice = choose(pairs, 3, 4, best, surely=False)
    assert choice.guided.agreement == choice.ranked[0].agreement
    assert describe(choice, 20) is None
    assert say(choice, 20, 4).startswith("No attention aligns: ")


def test_a_guided_head_aligns_even_where_occlusion_cannot_tell(tiny, tmp_path):
    """The weights are random. A second search keeps what the bundle says."""
    bundle = shutil.copytree(tiny, tmp_path / "tiny")
    edit_json("bundle.json", lambda manifest: manifest.pop("alignment"), bundle)
    expected = "Targets are aligned by head 2 of layer 1, as training guided it"
    assert align(bundle, guided=(1, 2)).startswith(expected)
    assert align(bundle).startswith(expected)
    alignment = load_bundle(bundle).manifest.alignment
    assert (alignment.layers, alignment.heads, alignment.shift) == ([1], [2], 0)
    assert alignment.guided


@pytest.mark.parametrize(("file", "kept"), [("opus.transformer-align.npz", True), ("m.npz", False)])
def test_a_second_search_is_as_sure_of_a_guided_head_as_the_first(tiny, tmp_path, file, kept):
    """By the names of the checkpoint's files. The weights are random, so nothing agrees with it."""
    bundle = shutil.copytree(tiny, tmp_path / "tiny")
    align(bundle, guided=(1, 2))
    edit_manifest(bundle, origin={"files": {"decoder.yml": "a1", file: "b2"}})
    align(bundle)
    alignment = json.loads((bundle / "bundle.json").read_text())["alignment"]
    assert (alignment is not None) is kept


@pytest.mark.parametrize("seed", range(5))
def test_the_best_of_many_that_look_anywhere_is_not_an_alignment(seed):
    """Of 52 candidates the best agrees more often than by chance, by chance."""
    choice = choose(planted(np.random.default_rng(seed), 0, 0, 0, 0), 3, 4)
    assert choice.ranked[0].agreement > choice.chance
    assert not choice.holds


@pytest.mark.parametrize(
    ("sources", "agreement", "chance", "holds"),
    [
        (200, 0.6, 0.1, True),
        (200, 0.49, 0.1, False),  # wrong more often than right
        (10, 0.6, 0.5, False),  # short sources: a coin does it as well
        (9, 1.0, 0.5, False),  # 1 in 512 for one candidate, and there are 52
        (40, 1.0, 0.5, True),
        (0, 0.0, 0.0, False),
    ],
)
def test_an_alignment_is_claimed_above_chance_and_half(sources, agreement, chance, holds):
    ranked = (Ranked(Candidate((0,), (0,), 0), agreement),) * 2
    assert Choice(ranked, 9 * sources, sources, chance, 52).holds is holds


def test_the_bound_of_chance_is_above_the_binomial_tail():
    for chance, n, k in [(0.1, 30, 12), (0.3, 50, 30), (0.5, 40, 39)]:
        tail = sum(comb(n, i) * chance**i * (1 - chance) ** (n - i) for i in range(k, n + 1))
        assert log(tail) <= -n * divergence(k / n, chance)


def test_equals_go_to_means_before_heads_and_to_no_shift():
    weights = np.full((2, 2, 3, 4), 0.25)
    labels = Labels(np.array([0]), np.array([0]), np.arange(4))
    best, _ = choose([(weights, labels)], 2, 2).ranked
    assert best.candidate == Candidate((0, 1), (0, 1), 0)
    assert len([*candidates(3, 4)]) == 2 * (1 + 3 + 12)
    assert len([*candidates(1, 1)]) == 2


def test_losses_are_clear_where_one_token_alone_halves_the_probability():
    losses = np.array([[0.7, 0.0], [0.69, 0.0], [0.7, 0.1], [3.0, 2.4], [3.1, 2.4], [0.6, -0.5]])
    assert clear(losses).tolist() == [0, 4]
    assert clear(losses[:, :1]).tolist() == []


def test_a_token_is_replaced_by_another_one_of_the_sources():
    source, text = [9, 5, 6, 5, 2], np.array([1, 2, 3])
    for unknown_id, allowed in ((3, {3}), (None, {5, 6, 7})):
        copies = Fill(np.array([5, 6, 7, 5]), unknown_id).copies(source, text)
        changed = copies != source
        assert changed.tolist() == [[0] * 5, [0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0]]
        assert {*copies[changed].tolist()} <= allowed


@pytest.fixture(scope="module")
def pairs(g2p):
    manifest = json.loads((g2p / "bundle.json").read_text())
    graphs = Graphs(g2p / "fp32", [1], [2], [], 63, manifest["config"]["target_vocab_size"])
    tokenizer = load_model(g2p).source_tokenizer
    sources = [tokenizer.encode(word, add_special_tokens=False).ids for word in ("thought", "heed")]
    return graphs, graphs.decode(sources)


def torch_log_probs(model, source, target):
    lengths = torch.tensor([len(source)]), torch.tensor([len(target)])
    ids = torch.tensor([source]), torch.tensor([[1, *target[:-1]]])
    with torch.no_grad():
        log_probs = model(ids[0], lengths[0], ids[1], lengths[1])[0]
    return log_probs[range(len(target)), target].numpy()


def test_labels_are_those_of_torch(g2p, pairs):
    """The token whose replacement costs most, by the network that the bundle was made of."""
    graphs, decoded = pairs
    model = load_model(g2p).transformer
    for pair, labels in zip(decoded, occlude(graphs, decoded, 3, ({2}, {2})), strict=True):
        whole = torch_log_probs(model, pair.source, pair.target)
        replaced = [
            [3 if i == place else each for i, each in enumerate(pair.source)]
            for place in range(len(pair.source))
        ]
        losses = whole - [torch_log_probs(model, source, pair.target) for source in replaced]
        rows = [row for row in clear(losses.T) if pair.target[row] != 2]
        assert labels.rows.tolist() == rows
        assert labels.columns.tolist() == losses.T[rows].argmax(1).tolist()


def test_special_tokens_are_neither_replaced_nor_labelled(pairs):
    graphs, decoded = pairs
    specials = {decoded[0].source[0]}, {decoded[0].target[0]}
    for pair, labels in zip(decoded, occlude(graphs, decoded, 3, specials), strict=True):
        assert not {pair.source[i] for i in [*labels.columns, *labels.text]} & specials[0]
        assert not {pair.target[i] for i in labels.rows} & specials[1]


def test_rows_of_attention_begin_with_the_step_that_predicts_the_first_token(pairs):
    graphs, decoded = pairs
    for pair, weights in zip(decoded, graphs.attend(decoded), strict=True):
        assert weights.shape == (3, 4, len(pair.target) + 1, len(pair.source))
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)


def randomise(bundle, seed):
    """Write random weights of about the size that they have before training."""
    path = bundle / "fp32" / "model.safetensors"
    header, start = read_header(path)
    content = bytearray(path.read_bytes())
    random = np.random.default_rng(seed)
    for tensor in header.values():
        if len(tensor.shape) > 1:
            first, last = (start + offset for offset in tensor.data_offsets)
            drawn = random.normal(0, 1 / tensor.shape[1] ** 0.5, tensor.shape)
            content[first:last] = drawn.astype(np.float32).tobytes()
    path.write_bytes(content)


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(i, marks=LONG) for i in range(3, 20))])
def test_a_random_model_has_no_alignment(tiny, tmp_path, seed):
    bundle = shutil.copytree(tiny, tmp_path / "tiny")
    randomise(bundle, seed)
    seal(bundle)
    sentence = align(bundle)
    assert sentence.startswith("No attention aligns: ")
    assert json.loads((bundle / "bundle.json").read_text())["alignment"] is None


def test_a_bundle_keeps_its_hashes_and_says_it_in_the_card_once(g2p, tmp_path, monkeypatch):
    bundle = shutil.copytree(g2p, tmp_path / "g2p-en")
    edit_json("bundle.json", lambda manifest: manifest.pop("alignment"), bundle)
    card = bundle / "MODEL_CARD.md"
    before = card.read_text().partition("\n\n## Alignment\n")[0]
    card.write_text(f"{before}\n\n## Alignment\n\nOld words.\n\n## Last\n\nMore.\n")
    seal(bundle)
    once = find(bundle, json.loads((bundle / "bundle.json").read_text()), (), ())
    monkeypatch.setattr("model.export.alignment.find.find", lambda *_: once)
    sentence = align(bundle)
    assert align(bundle) == sentence
    loaded = load_bundle(bundle)
    wrapped = fill(sentence, 112)
    assert loaded.card == f"{before}\n\n## Last\n\nMore.\n\n## Alignment\n\n{wrapped}\n"
    assert loaded.manifest.alignment == load_bundle(g2p).manifest.alignment
    assert f"{loaded.manifest.alignment.agreement:.1%}" in sentence


WATCHED = []  # functions that are called before each call of the system that Python reports


def report(event, _):
    if WATCHED and event.partition(".")[0] in ("open", "os", "shutil"):
        (look,) = [WATCHED.pop() for _ in WATCHED[:]]
        look()
        WATCHED.append(look)


def state_of(bundle):
    """Return the alignment and the card, if they belong together."""
    manifest = json.loads((bundle / "bundle.json").read_text())
    for name, file in manifest["files"].items():
        assert (bundle / name).stat().st_size == file["size"], name
    card = (bundle / "MODEL_CARD.md").read_bytes()
    assert hashlib.sha256(card).hexdigest() == manifest["files"]["MODEL_CARD.md"]["sha256"]
    return manifest["alignment"]["agreement"], card


@pytest.mark.skipif(sys.platform != "linux", reason="other systems swap folders in two steps")
@pytest.mark.parametrize("linked", [False, True])
def test_a_kill_leaves_the_old_bundle_or_the_new_one(g2p, tmp_path, monkeypatch, linked):
    bundle = asked = shutil.copytree(g2p, tmp_path / "g2p-en")
    if linked:
        asked = tmp_path / "link"
        asked.symlink_to(bundle)
    ranked = (Ranked(Candidate((2,), (1,), 0), 0.75),) * 2
    choice = Choice(ranked, 400, 40, 0.1, 9)
    monkeypatch.setattr("model.export.alignment.find.find", lambda *_: (choice, 40))
    states = [state_of(bundle)]
    sys.addaudithook(report)
    WATCHED.append(lambda: states.append(state_of(bundle)))
    try:
        align(asked)
    finally:
        WATCHED.clear()
    states.append(state_of(bundle))
    changes = [a != b for a, b in pairwise(states)]
    assert (sum(changes), len(changes) > 20, states[-1][0]) == (1, True, 0.75)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g2p-en", "link"][: 1 + linked]
    assert load_bundle(bundle).manifest.alignment.layers == [2]


def test_sources_are_of_all_lengths_and_as_many_as_a_minute_allows():
    config = {"d_model": 512, "num_heads": 8, "d_qk": 64, "d_v": 64, "d_ff": 2048}
    config |= {"num_encoder_layers": 6, "num_decoder_layers": 6, "target_vocab_size": 50_000}
    small = config | {"d_model": 64, "d_ff": 256, "num_heads": 1, "target_vocab_size": 99}
    sources = [[5] * length for length in range(1, 101)]
    assert len(spread(sources, small)) == MOST
    chosen = spread(sources, config)
    assert len(chosen) == FEWEST
    assert (len(chosen[0]), len(chosen[-1])) == (7, 94)
    some = spread(sources[:50], config)
    assert FEWEST < len(some) < MOST
    work = sum(len(each) * (len(each) + 1) for each in some)
    assert weights_of(config) * work <= WORK < weights_of(config) * work * 1.2


def run(*arguments):
    return CliRunner().invoke(app, ["align", *map(str, arguments)])


def test_the_command_reads_texts_and_refuses_what_it_cannot_use(g2p, tiny, tmp_path):
    bundle = shutil.copytree(g2p, tmp_path / "g2p-en")
    texts = tmp_path / "texts.tsv"
    texts.write_text("thought\tTH AO1 T\n\nknight\nphotograph\tF\n")
    assert "of 3 sources" in run(bundle, "--texts", texts).stdout
    for content, said in (
        (b"\n \t\n", "holds no text"),
        (b"\xff", "is not UTF-8"),
        (b"7", "knows"),
    ):
        texts.write_bytes(content)
        assert said in str(run(bundle, "--texts", texts).exception)
    assert "has no bundle.json" in str(run(tmp_path).exception)
    edit_json("bundle.json", lambda document: document["precisions"]["fp32"].pop("score"), bundle)
    assert "lacks the graphs score" in str(run(bundle).exception)
    edit_json(
        "bundle.json", lambda document: (document.pop("config"), document.pop("files")), bundle
    )
    assert "bundle.json lacks config, files: export" in str(run(bundle).exception)
    for version, way_out in ((2, "export"), ("2", "export"), (4, "install a later version")):
        edit_json("bundle.json", lambda found, v=version: found.update(format_version=v), bundle)
        said = f"has format {version}; this Heed reads format 3: {way_out}"
        assert said in str(run(bundle).exception)


@pytest.mark.long
def test_int8_alone_is_enough(g2p):
    """The same attention is found as at fp32."""
    manifest = json.loads((g2p / "bundle.json").read_text())
    del manifest["precisions"]["fp32"]
    choice, _ = find(g2p, manifest, (), ())
    assert list(choice.ranked[0].candidate.layers) == manifest["alignment"]["layers"]
