"""Every part of the benchmarks runs, on small models and for a moment. No number is judged."""

import asyncio
import dataclasses
import json
import shutil
from contextlib import contextmanager
from threading import Thread

import pytest
import typer

from benchmarks import documents, drafts, phrases
from benchmarks.kit.document import describe_machine
from benchmarks.kit.models import (
    T5,
    MeasuredModel,
    lettered,
    like_the_default,
    random_model,
    with_words,
    write_ctranslate2,
    write_models,
)
from benchmarks.kit.process import Call, Timed
from benchmarks.kit.raw_client import write_request
from benchmarks.kit.results import PRECISIONS, Comparison, Load
from benchmarks.kit.serving import serving
from benchmarks.kit.systems import ctranslate2_systems, heed_system
from benchmarks.load import fairness, mixed_requests, overload, start, worst
from benchmarks.load.load import WORDS, measure_load
from benchmarks.pronunciation import accuracy
from benchmarks.run import PARTS, SHORT, Plan, add_part, check, measure
from benchmarks.speed import attention, cells, checkpoints, gpu, operators
from benchmarks.speed.random_checkpoint import TINY as TINY_CHECKPOINT
from benchmarks.speed.report import COLUMNS, cell_columns, render_checkpoints, write_results
from model.export.files.manifest import Precision as Graphs
from model.network.config import TransformerConfig
from service.bundle.manifest import load_bundle
from service.settings.settings import DEFAULT_BUNDLE, Precision, Provider, Settings
from tests.web.chromium import CHROMIUM

LETTERS = TransformerConfig(
    source_vocab_size=30,
    target_vocab_size=30,
    d_model=16,
    d_ff=32,
    num_heads=2,
    num_encoder_layers=1,
    num_decoder_layers=1,
    norm_first=True,
    max_source_length=20,
    max_target_length=20,
)
TINY = MeasuredModel("tiny", LETTERS, length=5)
SIZES = {"d_model": 16, "embedding_scale": 1, "d_ff": 32, "num_heads": 2, "d_qk": 8, "d_v": 8}
SIZES |= {"num_encoder_layers": 2, "num_decoder_layers": 2}
TINY_T5 = MeasuredModel("tiny T5", dataclasses.replace(T5.config, **SIZES), length=200)


@pytest.fixture(scope="module")
def small():
    """A model of the default model's sizes, and how it is called."""
    return MeasuredModel("small", like_the_default().transformer.config, length=6)


@pytest.fixture(scope="module")
def folder(small, tmp_path_factory):
    """The default model, which takes no time to export, where `write_models` puts a bundle.

    CTranslate2 gets other weights, since it cannot compute these: no answers are compared.
    """
    folder = tmp_path_factory.mktemp("models")
    (folder / "heed").symlink_to(DEFAULT_BUNDLE)
    write_ctranslate2(random_model(small.config), folder / "ctranslate2")
    return folder


@pytest.mark.parametrize(
    "precisions", [("int8",), pytest.param(("int8", "fp32"), marks=pytest.mark.long)], ids=len
)
def test_cells(small, folder, capsys, precisions):
    batches = [(1, 1), (3, 2)]
    model = dataclasses.replace(small, precisions=precisions)
    found = cells.measure_cells(model, folder, rounds=2, wanted=batches, cores=1)
    assert [(cell["batch"], cell["beam_size"]) for cell in found] == batches
    for cell in found:
        compared = {name: cell[name].keys() for name in PRECISIONS if name in cell}
        assert compared == dict.fromkeys(precisions, Comparison.__required_keys__)
        assert len(cell_columns(cell)) == len(COLUMNS)
    assert len(capsys.readouterr().out.splitlines()) == len(batches)


def test_heed_is_compared_with_the_setting_of_its_peer_that_answers_soonest():
    seconds = {
        "heed int8": ([2.0, 4.0, 2.0], [[5], [6]]),
        "bare int8": ([1.0, 1.0, 1.0], [[0], [0]]),
        "ctranslate2 int8 1 x 2": ([9.0, 9.0, 9.0], [[5], [6]]),
        "ctranslate2 int8 2 x 1": ([4.0, 4.0, 8.0], [[5], [7]]),
        "ctranslate2 float32 1 x 2": ([1.0, 1.0, 1.0], [[5], [6]]),
    }
    wall = {name: each for name, (each, _) in seconds.items()}
    cpu = {name: [10 * each[0]] for name, each in wall.items()}
    measured = cells.Measured(wall, cpu, {name: ids for name, (_, ids) in seconds.items()})
    assert cells.compare_servers(measured, Call([[1], [2]], 1, 3), "int8") == {
        "ms": 2.0,
        "cpu_ms": 20.0,
        "tokens_per_second": 1000 * 2 * 3 / 2.0,
        "peer": "ctranslate2 int8 2 x 1",
        "peer_ms": 4.0,
        "peer_cpu_ms": 40.0,
        "ratio": 2.0,
        "quartiles": [1.0, 4.0],
        "cpu_ratio": 2.0,
        "graphs": 0.5,
        "same": 1,
    }


def test_the_cost_of_search_options(small, folder):
    sampling, beams = cells.measure_options(small, folder, rounds=1)
    assert sampling.startswith("sampling with top_p")
    assert beams.startswith("4 beams, repetition penalty")


def test_search_options_reach_heed(small, folder):
    plain = cells.call_of(small, 1, 1)
    sampled = dataclasses.replace(plain, options={"temperature": 50.0, "seed": 1})
    with cells.opened([heed_system("int8")], folder) as (system,):
        assert system(plain).ids != system(sampled).ids


def test_lengths(small, folder):
    lengths = [(3, 9), (20, 2)]
    rows = cells.measure_lengths(small, folder, rounds=1, lengths=lengths, cores=1)
    assert [(row["source"], row["target"]) for row in rows] == lengths


def test_memory(small, folder):
    peaks = cells.measure_memory(small, folder)
    assert len(peaks) == 5
    assert min(peaks.values()) > 1


def test_the_cost_of_attention(small, folder, monkeypatch):
    opened = cells.opened

    @contextmanager
    def opened_with_known_times(systems, folder):
        with opened(systems, folder) as (system,):
            yield [lambda call: Timed(3.0 if call.attention else 2.0, 0.0, system(call).ids)]

    monkeypatch.setattr(cells, "opened", opened_with_known_times)
    assert cells.measure_attention(small, folder, rounds=1) == 0.5


@pytest.mark.long
def test_slow_peers(folder):
    found = cells.measure_slow_peers(TINY, folder, rounds=1)
    assert {"Hugging Face float32", "no cache float32"} <= found.keys()
    assert all([*times] == ["1", "8"] for times in found.values())


@pytest.mark.long
def test_load(folder):
    found = measure_load(folder, seconds=0.5, shares=[0.7])
    assert found.keys() == Load.__required_keys__
    assert min(found["saturation"].values()) > 0
    (row,) = found["loads"]
    assert row["Heed"]["rate"] == row["CTranslate2"]["rate"] > 0


def test_cold_starts(folder):
    lines = start.measure(folder, "knight", turns=1)
    assert [system for system, *_ in lines] == ["Heed", "CTranslate2"]
    for _, seconds, held, anonymous in lines:
        assert float(seconds) > 0
        assert float(held) > float(anonymous) > 50


def test_each_word_of_a_sentence_is_a_token():
    texts = ["Why is it so?", "So it is."]
    trained = with_words(LETTERS, texts)
    read = [trained.source_tokenizer.encode(text).tokens for text in texts]
    assert read == [["Why", "is", "it", "so?"], ["So", "it", "is."]]
    assert trained.source_tokenizer.get_vocab_size() == LETTERS.source_vocab_size


def test_overload(monkeypatch):
    for module in (mixed_requests, overload):
        monkeypatch.setattr(module, "WORDS", ["heed", "the"])
    monkeypatch.setattr(overload, "PAUSE", 0.1)
    (row,) = overload.measure([3.0], seconds=1.0)
    outcome = row.found
    assert row.capacity > 0
    assert outcome.sent == sum(outcome.statuses.values()) > 0
    assert set(outcome.statuses) <= {200, 429}
    assert (outcome.wrong, outcome.without_retry) == (0, 0)
    assert {status for probes in outcome.probes.values() for status, _ in probes} == {200}
    assert outcome.cpu[overload.PROCESSES.index("engine")] > 0
    assert len(overload.columns(row)) == len(overload.COLUMNS)


def test_the_worst_bodies_are_measured():
    path, body = worst.BODIES["tokenize"]
    with serving(DEFAULT_BUNDLE) as port:
        request = write_request(path, json.dumps(body).encode())
        row = worst.measure(port, "tokenize", request, seconds=0.5)
    assert row.statuses.keys() <= {200, 429}
    assert row.failed == 0
    assert row.memory > 50
    assert "tokenize" in worst.describe(row)


@pytest.mark.parametrize("name", worst.BODIES)
def test_the_worst_bodies_are_read(name):
    """Not refused because they are too long."""
    _, body = worst.BODIES[name]
    assert len(json.dumps(body).encode()) <= Settings().max_body_bytes


def test_the_cost_of_required_phrases():
    rows = asyncio.run(phrases.measure(DEFAULT_BUNDLE, ["attention"], {}, together=2, rounds=1))
    assert {held for held, *_ in rows} <= {"2 of 2", "1 of 2", "0 of 2"}
    assert [len(row) for row in rows] == [len(phrases.COLUMNS)] * len(rows) != []


def test_what_drafts_save():
    settings = Settings(
        bundles=[DEFAULT_BUNDLE], provider=Provider.cpu, self_check=False, threads=1
    )
    bodies = [{"source": word, "beam_size": 1} for word in ("attention", "heed")]
    written = asyncio.run(drafts.measure(settings, bodies, wrong=0.1, rounds=1))
    _, _, *rows = written.splitlines()
    assert [row.split(" | ")[1:3] for row in rows if row] == [["2", "2"]] * 4


def test_whole_files(folder):
    """Only Heed's model ends its targets, HH IY1 D and DH AH0, before the limit."""
    bundle = load_bundle(folder / "heed")
    measured = documents.measure(folder, bundle, ["heed", "the"], {}, most=4, rounds=1)
    lines = [line.removeprefix("| ").split(" | ") for line in asyncio.run(measured)]
    systems = [documents.PEER, documents.ALONE, documents.COMMAND, documents.HTTP]
    assert [line[:2] for line in lines] == [[size, each] for size in "14" for each in systems]
    assert [line[-1] for line in lines] == ["8 |", " |", "5 |", "5 |"] * 2


def test_operators():
    lines = [*operators.durations([(1, 4, 16, 16)], rounds=1)]
    assert [line.startswith("1 x 4 x 16, 16: ") for line in lines] == [False, True] * 2


def test_accuracy():
    pairs = [("heed", "HH IY1 D"), ("the", "DH AH0"), ("the", "DH IY0")]
    (line,) = accuracy.served_error_rates(pairs, DEFAULT_BUNDLE, [Precision.int8], [4])
    assert line.startswith("int8, beam_size 4: 2 words, stress stripped: WER 0.00 %")


def test_formats():
    rows = attention.measure_formats(layers=2, heads=2, tokens=4, rounds=1)
    assert rows[0][0] == "2 x 2 x 4 x 4 weights as application/json"


def test_a_large_document(server):
    rows = attention.measure_large(server, tokens=9, name="default model")
    assert [row[0].startswith("9 x 9 tokens, default model, as ") for row in rows] == [True] * 3


@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl here")
def test_gaps_between_small_answers_while_large_ones_are_sent(server):
    measured = attention.measure_gaps(
        server, "application/safetensors", seconds=0.5, phases=1, targets=2
    )
    name, result = asyncio.run(measured)
    assert name.endswith("MB, application/safetensors")
    assert result.count("/") == 4


@pytest.mark.skipif(not CHROMIUM, reason="there is no chromium here")
def test_typing_on_the_page(server):
    """In a thread of its own: Playwright refuses one that has a browser already."""
    rows = []
    thread = Thread(target=lambda: rows.extend(attention.measure_typing(server, ["heed"])))
    thread.start()
    thread.join()
    assert [name for name, _ in rows] == ["A word typed on the page until its heatmap is drawn"]


@pytest.mark.filterwarnings("ignore")  # g2p_en leaves a file open
def test_a_peer_of_the_default_model_that_is_trained_here(tmp_path):
    peers = pytest.importorskip("benchmarks.pronunciation.peers", exc_type=ImportError)
    spelled = [(word, " ".join(word)) for word in WORDS if word.isalpha()]
    found = peers.phonetisaurus_predictions(spelled, ["tea", "?"], tmp_path)
    assert found == {"tea": "t e a", "?": ""}


@pytest.mark.filterwarnings("ignore")
def test_a_peer_of_the_default_model_that_comes_trained():
    peers = pytest.importorskip("benchmarks.pronunciation.peers", exc_type=ImportError)
    assert peers.g2p_en_predictions(["HEED"])["HEED"].startswith("HH IY")


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """All of a run, on models that it writes, and the folder of these models."""
    work = tmp_path_factory.mktemp("run")
    cells = [(TINY, [(1, 1)]), (TINY_T5, [(1, 1)])]
    plan = Plan(cells=cells, lengths=[(3, 9)], rounds=2, seconds=0.5)
    served, small = like_the_default(), {"d_model": 16, "d_ff": 32, "num_heads": 2}
    config = dataclasses.replace(served.transformer.config, **small, d_qk=8, d_v=8)
    served = dataclasses.replace(served, transformer=random_model(config))
    results = {"machine": describe_machine(), "rounds": plan.rounds}
    for part in measure(plan, served, work):
        add_part(results, part)
    return results, work


def test_cells_of_a_model_take_the_place_of_those_it_had():
    results = {"cells": [cell("a", 1), cell("b", 1), cell("b", 2), cell("c", 1)], "load": 1}
    for new in ([cell("b", 8)], [cell("c", 8), cell("a", 8), cell("a", 9)], [cell("d", 1)]):
        add_part(results, {"cells": new})
    add_part(results, {"load": 2})
    cells = [cell("a", 8), cell("a", 9), cell("b", 8), cell("c", 8), cell("d", 1)]
    assert results == {"cells": cells, "load": 2}


def cell(model, batch):
    return {"model": model, "batch": batch}


def test_parts_are_added_to_a_run_on_the_same_machine_only():
    last = {"machine": {"cpu": "A"}, "rounds": 3}
    check(["base", *PARTS], SHORT, last, last)
    with pytest.raises(
        typer.BadParameter, match="lode is not a part: give some of base, small, load"
    ):
        check(["lode"], SHORT, last, last)
    with pytest.raises(typer.BadParameter, match="another machine"):
        check(["load"], SHORT, last | {"machine": {"cpu": "B"}}, last)


@pytest.mark.long
def test_a_whole_run_is_written(whole_run, tmp_path):
    write_results(whole_run[0], tmp_path)
    page, numbers = (tmp_path / f"performance.{form}" for form in ("md", "json"))
    assert page.read_text().count("tiny, batch 1, beams 1") == 1
    assert json.loads(numbers.read_text()) == whole_run[0]


@pytest.mark.long
def test_all_systems_decode_the_same_tokens(whole_run):
    """Of the same random weights, at fp32: Heed, CTranslate2, Hugging Face and no cache."""
    peers = [each for each in cells.slow_peers(TINY) if "int8" not in each.name]
    systems = [heed_system("fp32"), *ctranslate2_systems("float32", 1), *peers]
    answers = answers_of(systems, cells.call_of(TINY, 4, 1), whole_run[1] / "tiny")
    assert answers == [answers[0]] * 4
    assert {len(ids) for ids in answers[0]} == {TINY.length}


@pytest.mark.long
def test_ctranslate2_gets_the_weights_of_t5(whole_run):
    """With sources and targets beyond the longest distance that has a bias of its own."""
    systems = [heed_system("fp32"), *ctranslate2_systems("float32", 1)]
    call = cells.call_of(TINY_T5, 3, 1)
    ours, theirs = answers_of(systems, call, whole_run[1] / "tiny T5")
    assert ours == theirs
    assert len({tuple(ids) for ids in ours}) == 3


def answers_of(systems, call, folder):
    answers = []
    for system in systems:
        with cells.opened([system], folder) as (running,):
            answers.append(running(call).ids)
    return answers


@pytest.mark.long
def test_checkpoints(tmp_path):
    (found,) = checkpoints.measure({TINY_CHECKPOINT: ("int8", "both")}, tmp_path)
    only_int8, both = found["conversions"]
    assert 0 < only_int8["anonymous"] < only_int8["peak"]
    assert only_int8["bundle"] < both["bundle"]
    int8, fp32 = found["servings"]
    assert int8["weights"] < fp32["weights"]
    for served in (int8, fp32):
        assert 0 < served["ready"] <= served["ready_peak"] <= served["shown_peak"]
    assert render_checkpoints(found).count("| tiny |") == 4


def test_fairness(monkeypatch):
    monkeypatch.setattr(fairness, "SETTLE", 0.1)
    monkeypatch.setattr(
        fairness, "LARGE_REQUESTS", {"nothing": None, "few": {"source": ["heed"] * 9}}
    )
    alone, among = fairness.measure(seconds=0.5)
    assert (alone[0], alone[3], alone[4]) == ("nothing", "", "0")
    assert (among[0], among[4]) == ("few", "0")
    assert "| few |" in fairness.render([alone, among])


@pytest.mark.long
def test_systems_of_a_gpu_give_the_same_answers(tmp_path):
    """On the CPU, with kernels of their own for the same numbers."""
    write_models(lettered(LETTERS), tmp_path, Graphs.fp16)
    with cells.opened([*gpu.systems_on("cpu", TINY).values()], tmp_path) as systems:
        _, *found = gpu.measure_cell(systems, TINY, sources=2, beams=1, rounds=1)
    assert [cell.split(" ", 1)[1] for cell in found] == ["(2 of 2)"] * 3
