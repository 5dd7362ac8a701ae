"""Compare the service's searches with those of CTranslate2 and Hugging Face transformers.

The default model's weights at fp32 give real sentences; tiny random models give searches that
reach their limit. Each system runs its own forward pass. Rotary positions are left out, because
neither peer combines them with sinusoidal ones.
"""

import dataclasses
import random
from pathlib import Path

import ctranslate2
import numpy as np
import pytest
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from benchmarks.kit.hugging_face import to_hugging_face
from benchmarks.kit.models import write_ctranslate2
from model.checkpoint import load_model
from model.data.pairs import pad
from model.export.bundle import WeightType, write_bundle
from model.export.files.manifest import Card
from model.network.config import TransformerConfig
from model.network.transformer import Transformer
from model.search import beam_search
from service.bundle.manifest import load_bundle
from service.engine.engine import Engine
from service.engine.scheduler import Job
from service.search.beam import BeamSearch
from service.search.options import SearchOptions
from service.search.protocol import Candidates
from service.settings.settings import Precision, Provider, Settings
from service.wire import Entry
from tests.tracing import only

WORDS = Path(__file__).parent / "words.txt"
OTHERS = (4, 0.6), (3, 2.0)  # beams and length penalties, for make test-long
TOLERANCE = 0.02  # of scores: CTranslate2's exponentials are less exact


@pytest.fixture(scope="module")
def plain(g2p, tmp_path_factory):
    """Write a bundle whose network both peers can compute."""
    trained = load_model(g2p)
    state = trained.transformer.state_dict()
    transformer = Transformer(dataclasses.replace(trained.transformer.config, rotary=False))
    transformer.load_state_dict({name: state[name] for name in transformer.state_dict()})
    folder = tmp_path_factory.mktemp("peers") / "plain"
    card = Card(name="plain", task="tests", licence="-", attribution="-", notice="-")
    trained = dataclasses.replace(trained, transformer=transformer.eval())
    with only("encoder", "step"):
        write_bundle(trained, card, WeightType.fp32, folder)
    return folder


@pytest.fixture(scope="module")
def sources(g2p):
    """Return the ids of 200 words and of 300 random strings of letters."""
    letters, random_ = "abcdefghijklmnopqrstuvwxyz", random.Random(0)
    strings = ["".join(random_.choices(letters, k=random_.randint(1, 14))) for _ in range(300)]
    tokenizer = load_model(g2p).source_tokenizer
    return [tokenizer.encode(word).ids for word in [*WORDS.read_text().split(), *strings]]


@pytest.fixture(scope="module")
def translator(plain, tmp_path_factory):
    folder = tmp_path_factory.mktemp("peers") / "ctranslate2"
    write_ctranslate2(load_model(plain).transformer, folder)
    return ctranslate2.Translator(str(folder), compute_type="float32")


def decode(bundle, sources, **options):
    engine = Engine(load_bundle(bundle), Settings(provider=Provider.cpu, precision=Precision.fp32))
    engine.start()
    search = SearchOptions(max_new_tokens=63, **options)
    jobs = [Job(Entry(np.array(ids), search)) for ids in sources]
    engine.queue.put(jobs)
    engine.close()
    return [job.result.result(0).hypotheses for job in jobs]


@pytest.mark.parametrize(
    ("beam_size", "length_penalty"),
    [(1, 1.0), (4, 1.0), *(pytest.param(*each, marks=pytest.mark.long) for each in OTHERS)],
)
def test_hypotheses_are_those_of_ctranslate2(plain, sources, translator, beam_size, length_penalty):
    """Where two hypotheses differ, their scores are closer than the tolerance."""
    sources = sources[::2]  # to keep the test short
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
    [
        (4, 1.0, {}),
        (4, 1.0, LIMITS),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in [(1, 1.0, {}), (1, 1.0, LIMITS), *((*other, {}) for other in OTHERS)]
        ),
    ],
)
def test_hypotheses_are_those_of_hugging_face(plain, sources, beam_size, length_penalty, limits):
    """All hypotheses of each source agree, best first, but for near ties that rounding swaps."""
    sources = sources[::4]  # `generate` takes long
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
    assert different <= max(1, 0.002 * len(ids))


def up_to_eos(ids, eos_id):
    return ids[: ids.index(eos_id) + 1] if eos_id in ids else ids


VOCABULARY, EOS = 16, 2


def random_transformer(seed):
    """Return a tiny model that ends about one sentence in three at each step and never says pad,
    which Hugging Face would take for padding."""
    torch.manual_seed(seed)
    config = TransformerConfig(
        source_vocab_size=VOCABULARY,
        target_vocab_size=VOCABULARY,
        d_model=8,
        d_ff=16,
        num_heads=2,
        num_encoder_layers=1,
        num_decoder_layers=1,
        norm_first=True,
        max_target_length=32,
    )
    model = Transformer(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
        model.generator.bias[config.pad_id] = -1e4
        model.generator.bias[EOS] += 1.5
    return model


@torch.no_grad()
def beams_of_the_service(model, source_ids, options, forced=()):
    """Search for one source with the whole target read again at each step."""
    search, rows = BeamSearch(options.beam_size, (EOS,), str), options.beam_size
    search.insert([options], [[model.config.bos_id, *forced]], [np.array(source_ids)])
    source = torch.tensor([source_ids]).expand(rows, -1)  # (K, S)
    target = torch.full((rows, 1), model.config.bos_id)  # (K, T)
    while True:
        lengths = [torch.full((rows,), ids.size(1)) for ids in (source, target)]
        log_probs = model(source, lengths[0], target, lengths[1])[:, -1]  # (K, V)
        best = log_probs.topk(min(search.needed.k, VOCABULARY))
        step = search.advance(Candidates(*(each.numpy() for each in best), log_probs.numpy()))
        if step.ended:
            return search.hypotheses(0)
        if step.parents is not None:
            target = target[torch.from_numpy(step.parents)]
        target = torch.cat([target, torch.from_numpy(step.tokens)[:, None]], 1)


def beams_of_hugging_face(model, source_ids, options, forced=None):
    """Generate behind a `forced` id, which counts as a new token."""
    start = 1 if forced is None else 2
    found = to_hugging_face(model).generate(
        input_ids=torch.tensor([source_ids]),
        attention_mask=torch.ones(1, len(source_ids), dtype=torch.long),
        forced_bos_token_id=forced,
        max_new_tokens=options.max_new_tokens + start - 1,
        do_sample=False,
        num_beams=options.beam_size,
        num_return_sequences=options.beam_size,
        length_penalty=options.length_penalty,
        early_stopping=options.early_stopping,
        repetition_penalty=options.repetition_penalty,
        no_repeat_ngram_size=options.no_repeat_ngram_size,
        return_dict_in_generate=True,
        output_scores=True,
    )
    ids = [up_to_eos(row, EOS) for row in found.sequences[:, start:].tolist()]
    return ids, found.sequences_scores.tolist()


def beams_of_ctranslate2(model, source_ids, options, folder):
    write_ctranslate2(model, folder)
    translator = ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)
    (found,) = translator.translate_batch(
        [[str(token) for token in source_ids]],
        beam_size=options.beam_size,
        num_hypotheses=options.beam_size,
        max_decoding_length=options.max_new_tokens,
        min_decoding_length=0,
        length_penalty=options.length_penalty,
        return_scores=True,
        return_end_token=True,
    )
    return [[int(token) for token in tokens] for tokens in found.hypotheses], found.scores


def beams_of_the_oracle(model, source_ids, options):
    source = torch.tensor(source_ids)
    found = beam_search(model, source, options.beam_size, options.max_new_tokens)
    return [each.token_ids for each in found], [each.score for each in found]


ShortSearches = st.builds(
    lambda beams, **chosen: SearchOptions(beam_size=beams, num_hypotheses=beams, **chosen),
    beams=st.integers(2, 4),
    max_new_tokens=st.integers(1, 6),
    length_penalty=st.sampled_from([0.6, 1.0, 2.0]),
    early_stopping=st.booleans(),
)
PHASES = [Phase.explicit, Phase.generate]  # no shrinking: a smaller seed is not a simpler example
Sources = st.lists(st.integers(3, VOCABULARY - 1), min_size=1, max_size=5)


@pytest.mark.long
@example(
    seed=1,
    source_ids=[3, 4, 5],
    options=SearchOptions(max_new_tokens=4, beam_size=3, num_hypotheses=3),
)
@given(seed=st.integers(0, 9999), source_ids=Sources, options=ShortSearches)
@settings(max_examples=60, phases=PHASES)
def test_beams_at_the_limit_are_those_of_both_peers(tmp_path_factory, seed, source_ids, options):
    """Unfinished beams compete with the hypotheses that ended, also with those of the last step.

    CTranslate2 and the oracle always stop early; the oracle's length penalty is 1.
    """
    model = random_transformer(seed)
    ours = beams_of_the_service(model, source_ids, options)
    theirs = [beams_of_hugging_face(model, source_ids, options)]
    if options.early_stopping:
        folder = tmp_path_factory.mktemp("peers") / "random"
        theirs.append(beams_of_ctranslate2(model, source_ids, options, folder))
    if options.early_stopping and options.length_penalty == 1:
        theirs.append(beams_of_the_oracle(model, source_ids, options))
    for ids, scores in theirs:
        assert [hypothesis.score for hypothesis in ours] == pytest.approx(scores, abs=1e-4)
        assert [hypothesis.token_ids for hypothesis in ours] == ids


@pytest.mark.long
@given(
    seed=st.integers(0, 9999),
    source_ids=Sources,
    options=ShortSearches,
    penalty=st.sampled_from([1.0, 0.8, 1.3, 2.0]),
    size=st.sampled_from([0, 2, 3]),
    forced=st.integers(3, VOCABULARY - 1),
)
@settings(max_examples=60, phases=PHASES)
def test_a_second_start_id_is_a_forced_bos(seed, source_ids, options, penalty, size, forced):
    """It counts in the length, which ranks hypotheses and ends the search, for the repetition
    penalty, which lowers log-probs, and in n-grams."""
    model = random_transformer(seed)
    options = options._replace(repetition_penalty=penalty, no_repeat_ngram_size=size)
    ours = beams_of_the_service(model, source_ids, options, [forced])
    ids, scores = beams_of_hugging_face(model, source_ids, options, forced)
    assert [hypothesis.score for hypothesis in ours] == pytest.approx(scores, abs=1e-4)
    assert [hypothesis.token_ids for hypothesis in ours] == ids
