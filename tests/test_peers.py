"""The searches of the service beside those of CTranslate2 and Hugging Face transformers, on the
default model's weights at fp32, without rotary, which neither has beside sines; each with a forward
pass of its own."""

import dataclasses
import random
from pathlib import Path

import ctranslate2
import numpy as np
import pytest
import torch

from benchmarks.hugging_face import to_hugging_face
from benchmarks.models import write_ctranslate2
from model.checkpoint import load_model
from model.data.pairs import pad
from model.export.bundle import Card, WeightType, write_bundle
from model.network.transformer import Transformer
from service.bundle import load_bundle
from service.engine.engine import Engine
from service.engine.messages import Entry
from service.search.options import SearchOptions
from service.settings import Precision, Provider, Settings

WORDS = Path(__file__).parent / "words.txt"
TOLERANCE = 0.02  # of scores: CTranslate2 computes exponentials less exactly


@pytest.fixture(scope="module")
def plain(g2p, tmp_path_factory):
    """A bundle of what both peers can compute."""
    trained = load_model(g2p)
    state = trained.transformer.state_dict()
    transformer = Transformer(dataclasses.replace(trained.transformer.config, rotary=False))
    transformer.load_state_dict({name: state[name] for name in transformer.state_dict()})
    folder = tmp_path_factory.mktemp("peers") / "plain"
    card = Card(name="plain", task="tests", licence="-", attribution="-", notice="-")
    trained = dataclasses.replace(trained, transformer=transformer.eval())
    write_bundle(trained, card, WeightType.fp32, folder)
    return folder


@pytest.fixture(scope="module")
def sources(g2p):
    """200 words and 300 heaps of letters, as ids."""
    letters, random_ = "abcdefghijklmnopqrstuvwxyz", random.Random(0)
    heaps = ["".join(random_.choices(letters, k=random_.randint(1, 14))) for _ in range(300)]
    tokenizer = load_model(g2p).source_tokenizer
    return [tokenizer.encode(word).ids for word in [*WORDS.read_text().split(), *heaps]]


@pytest.fixture(scope="module")
def translator(plain, tmp_path_factory):
    folder = tmp_path_factory.mktemp("peers") / "ctranslate2"
    write_ctranslate2(load_model(plain).transformer, folder)
    return ctranslate2.Translator(str(folder), compute_type="float32")


def decode(bundle, sources, **options):
    engine = Engine(load_bundle(bundle), Settings(provider=Provider.cpu, precision=Precision.fp32))
    engine.start()
    search = SearchOptions(max_new_tokens=63, **options)
    entries = [Entry(source_ids=np.array(ids), search=search) for ids in sources]
    engine.queue.put(entries)
    engine.close()
    return [entry.result.result(0).hypotheses for entry in entries]


@pytest.mark.parametrize(("beam_size", "length_penalty"), [(1, 1.0), (4, 1.0), (4, 0.6), (3, 2.0)])
def test_hypotheses_are_those_of_ctranslate2(plain, sources, translator, beam_size, length_penalty):
    """Real ends of sequences; where two differ, their scores lie closer than the tolerance."""
    options = {"beam_size": beam_size, "length_penalty": length_penalty}
    ours = decode(plain, sources, num_hypotheses=beam_size, **options)
    theirs = translator.translate_batch(
        [[str(token) for token in ids] for ids in sources],
        num_hypotheses=beam_size,
        max_decoding_length=63,
        return_scores=True,
        return_end_token=True,
        **options,
    )
    different = 0
    for hypotheses, result in zip(ours, theirs, strict=True):
        ids = [[int(token) for token in tokens] for tokens in result.hypotheses]
        different += hypotheses[0].token_ids != ids[0]
        scores = [hypothesis.score for hypothesis in hypotheses]
        np.testing.assert_allclose(scores[0], result.scores[0], rtol=TOLERANCE, atol=TOLERANCE)
    assert different <= 0.004 * len(sources)


LIMITS = {"min_new_tokens": 6, "no_repeat_ngram_size": 2, "suppress_tokens": [4, 7, 26]}


@pytest.mark.parametrize(
    ("beam_size", "length_penalty", "limits"),
    [(1, 1.0, {}), (4, 1.0, {}), (4, 0.6, {}), (3, 2.0, {}), (1, 1.0, LIMITS), (4, 1.0, LIMITS)],
)
def test_hypotheses_are_those_of_hugging_face(plain, sources, beam_size, length_penalty, limits):
    """All of every source, best first; sums of other orders of addition may swap a near tie."""
    options = {"length_penalty": length_penalty, "early_stopping": True}
    suppressed = {"suppress_tokens": tuple(limits.get("suppress_tokens", ()))}
    every = {**options, **limits, **suppressed}
    ours = decode(plain, sources, beam_size=beam_size, num_hypotheses=beam_size, **every)
    model = load_model(plain).transformer
    theirs = to_hugging_face(model)
    found: list[list[int]] = []
    for first in range(0, len(sources), 100):
        input_ids, lengths = pad(sources[first : first + 100], model.config.pad_id)
        generated = theirs.generate(
            input_ids=input_ids,
            attention_mask=(torch.arange(input_ids.size(1)) < lengths[:, None]).long(),
            max_new_tokens=63,
            do_sample=False,
            num_beams=beam_size,
            num_return_sequences=beam_size,
            **(options if beam_size > 1 else {}),
            **limits,
        )
        found += [up_to_eos(row, model.config.eos_id) for row in generated[:, 1:].tolist()]
    ids = [hypothesis.token_ids for hypotheses in ours for hypothesis in hypotheses]
    assert len(ids) == len(found)
    different = sum(a != b for a, b in zip(ids, found, strict=True))
    assert different <= 0.002 * len(ids)


def up_to_eos(ids, eos_id):
    return ids[: ids.index(eos_id) + 1] if eos_id in ids else ids
