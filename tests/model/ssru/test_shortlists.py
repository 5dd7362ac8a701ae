"""A model with shortlists writes what masked log-probs of an oracle in NumPy give."""

import random

import numpy as np
import pytest

from service.bundle.manifest import load_bundle
from service.errors import StartupError
from service.runtime.outputs import read_shortlists
from service.search.options import SearchOptions
from service.search.phrases import Phrase, Requirement
from service.settings.settings import Precision, Provider, Settings
from service.wire import Entry
from tests.conftest import opened
from tests.model.importers.served import post
from tests.model.ssru.oracle import Oracle, log_softmax
from tests.model.ssru.test_oracle import TOLERANCE, assert_decoding, pairs_of
from tests.model.ssru.test_requests import draw
from tests.service.engine.engines import running
from tests.service.engine.mixes import assert_as_alone, decode_alone, decode_together

MOST = 12
FP32 = Settings(precision=Precision.fp32, provider=Provider.cpu, threads=2, self_check=False)


class MaskedOracle(Oracle):
    """Log-probs are -inf for tokens that the shortlist of the source lacks, and normalized again.
    It reads the file as docs/bundle.md describes it."""

    def __init__(self, bundle):
        super().__init__(bundle)
        self.required = ()
        with np.load(bundle / "shortlists.npz") as file:
            self.offsets, self.tokens, self.always = (
                file[name] for name in ("offsets", "tokens", "always")
            )

    def listed(self, source):
        lists = (self.tokens[self.offsets[each] : self.offsets[each + 1]] for each in source)
        return {*self.always.tolist(), *self.required}.union(*(each.tolist() for each in lists))

    def encode(self, ids, gates=None):
        self.mask = np.full(self.config["target_vocab_size"], -np.inf)
        self.mask[[*self.listed(ids)]] = 0
        return super().encode(ids, gates)

    def step(self, *arguments, **more):
        log_probs, *rest = super().step(*arguments, **more)
        return log_softmax(log_probs + self.mask), *rest


@pytest.fixture(scope="module")
def client(listed):
    with opened(listed, precision="fp32") as client:
        yield client


@pytest.fixture(scope="module")
def oracle(listed):
    return MaskedOracle(listed)


@pytest.fixture(scope="module")
def sources(oracle):
    """Sources that may not have all tokens."""
    found = [source for source, _ in pairs_of(oracle.config, [(n % 5 + 1, 1) for n in range(20)])]
    size = oracle.config["target_vocab_size"]
    return [source for source in found if len(oracle.listed(source)) < size][:8]


@pytest.mark.parametrize("beam_size", [1, 2])
def test_hypotheses_are_those_of_masked_log_probs(listed, client, oracle, sources, beam_size):
    assert_decoding(client, oracle, sources, beam_size)
    whole = Oracle(listed)
    best = [(source, whole.beam_search(source, 1, MOST)) for source in sources]
    # the shortlists change some answers
    assert not all({*ids} <= oracle.listed(source) for source, ((_, ids),) in best)


@pytest.mark.parametrize("precision", [Precision.fp32, Precision.int8])
def test_answers_are_those_of_each_request_alone(listed, precision):
    """Sources come and go, and with them the tokens that the batch scores."""
    random_ = random.Random(4)
    wanted = [draw(random_) for _ in range(60)]
    assert_as_alone(load_bundle(listed), precision, wanted, random_)


def draw_options(random_):
    """Draw an entry with options that ban, penalize, draw or report tokens."""
    beam_size, pick = random_.choice([1, 1, 2, 4]), random_.choice
    samples = beam_size == 1 and random_.random() < 0.3
    search = SearchOptions(
        max_new_tokens=random_.randint(1, 16),
        beam_size=beam_size,
        num_hypotheses=3 if samples else beam_size,
        target_prefix=tuple(random_.choices(range(4, 10), k=random_.randint(0, 3))),
        suppress_tokens=tuple(random_.sample(range(2, 10), pick([0, 0, 1, 5]))),
        min_new_tokens=pick([0, 0, 5]),
        no_repeat_ngram_size=pick([0, 0, 1, 2]),
        repetition_penalty=pick([1.0, 1.4, 0.8]),
        encoder_repetition_penalty=pick([1.0, 1.0, 1.3]),
        renormalize=pick([False, False, True]),
        temperature=1.2 if samples else 0.0,
        top_k=pick([0, 3]) if samples else 0,
        stop_ids=frozenset(random_.sample(range(4, 10), pick([0, 0, 1]))),
        top_log_probs=pick([0, 9]),
        entropies=pick([False, True]),
    )
    return Entry(np.array(random_.choices(range(4, 10), k=random_.randint(1, 12))), search)


def test_all_options_act_on_listed_tokens_alone(listed):
    """Whatever else is in the batch."""
    random_ = random.Random(1)
    wanted = [draw_options(random_) for _ in range(200)]
    with running(load_bundle(listed), FP32) as engine:
        together = decode_together(engine, wanted, random_)
        alone = decode_alone(engine, wanted)
    for entry, mixed, single in zip(wanted, together, alone, strict=True):
        may_have = {*engine.session.shortlists.of(entry.source_ids).tolist()}
        assert len(mixed.hypotheses) == len(single.hypotheses)
        for one, other in zip(mixed.hypotheses, single.hypotheses, strict=True):
            assert (one.token_ids, one.finish_reason) == (other.token_ids, other.finish_reason)
            assert {*one.token_ids} <= may_have
            if one.top_log_probs is not None:
                possible = one.top_log_probs["log_prob"] > -np.inf
                assert {*one.top_log_probs["id"][possible].tolist()} <= may_have
            np.testing.assert_allclose(one.log_probs, other.log_probs, **TOLERANCE)
            np.testing.assert_allclose(one.entropies, other.entropies, **TOLERANCE)
            assert np.isfinite(one.log_probs).all()


def test_tokens_of_required_phrases_are_listed_for_their_sources_too(listed, sources):
    """Each source requires one that its shortlist lacks; plain searches are in the same batch."""
    oracle, size = MaskedOracle(listed), Oracle(listed).config["target_vocab_size"]
    phrases = [max({*range(4, size)} - oracle.listed(each)) for each in sources]
    plain = {"max_new_tokens": MOST, "beam_size": 2}
    wanted = [
        Entry(np.array(source), SearchOptions(**plain, required=required))
        for source, token in zip(sources, phrases, strict=True)
        for required in [(), (Requirement("", (Phrase((token,)),)),)]
    ]
    with running(load_bundle(listed), FP32) as engine:
        together = decode_together(engine, wanted, random.Random(1))
    found = [answer.hypotheses[0] for answer in together]
    for source, token, without, hypothesis in zip(
        sources, phrases, found[::2], found[1::2], strict=True
    ):
        oracle.required = ()
        assert token not in without.token_ids
        np.testing.assert_allclose(
            without.log_probs, oracle.score(source, without.token_ids)[0], **TOLERANCE
        )
        oracle.required = (token,)
        assert token in hypothesis.token_ids
        np.testing.assert_allclose(
            hypothesis.log_probs, oracle.score(source, hypothesis.token_ids)[0], **TOLERANCE
        )


def test_samples_and_alternatives_are_listed(client, oracle, sources):
    options = {"temperature": 1.5, "num_hypotheses": 4, "seed": 1, "max_new_tokens": MOST}
    options["top_log_probs"] = 9
    for source, result in zip(
        sources, post(client, "/v1/decode", source=sources, **options), strict=True
    ):
        listed = oracle.listed(source)
        for hypothesis in result["hypotheses"]:
            ids = hypothesis["token_ids"]
            expected, _ = oracle.score(source, ids)
            np.testing.assert_allclose(hypothesis["log_probs"], expected, **TOLERANCE)
            for top in hypothesis["top_log_probs"]:
                assert {each["id"] for each in top} <= listed
                assert len(top) == min(9, len(listed))


@pytest.mark.parametrize("beam_size", [1, 2])
def test_a_request_that_bans_all_listed_tokens_stops(client, oracle, sources, beam_size):
    banned = sorted(oracle.listed(sources[0]))
    body = {"source": [sources[0]], "suppress_tokens": banned, "beam_size": beam_size}
    (result,) = post(client, "/v1/decode", **body)
    found = [(each["token_ids"], each["finish_reason"]) for each in result["hypotheses"]]
    assert found == [([], "stop")]


def test_a_request_that_names_tokens_or_switches_heads_off_gets_all(
    listed, client, oracle, sources
):
    source = sources[0]
    (missing, *_) = sorted({*range(4, 10)} - oracle.listed(source))
    body = {"source": [source], "max_new_tokens": MOST}
    letter = "stuvwx"[missing - 4]
    for more in ({"allowed_targets": [letter]}, {"required": [letter], "beam_size": 2}):
        (result,) = post(client, "/v1/decode", **body, **more)
        assert missing in result["hypotheses"][0]["token_ids"]
    (scored,) = post(client, "/v1/score", source=[source], target=[[missing]])
    whole = Oracle(listed)
    np.testing.assert_allclose(scored["log_probs"], whole.score(source, [missing])[0], **TOLERANCE)
    gates = np.ones((oracle.config["num_decoder_layers"], oracle.config["num_heads"]))
    gates[0, 0] = 0
    ablate = [{"kind": "cross", "layer": 0, "heads": [0]}]
    (result,) = post(client, "/v1/decode", **body, ablate=ablate)
    (hypothesis,) = result["hypotheses"]
    expected, _ = whole.score(source, hypothesis["token_ids"], gates=gates)
    np.testing.assert_allclose(hypothesis["log_probs"], expected, **TOLERANCE)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"offsets": np.arange(3)}, "offsets must be"),
        ({"tokens": np.full(4, 9)}, "offsets must be"),
        ({"always": np.array([10**6])}, "always must be ids below"),
        ({"always": np.array([5])}, "always lacks"),
        ({"always": None}, "lacks the array"),
        ({"always": np.array(["x"])}, "cannot be used"),
    ],
)
def test_shortlists_that_contradict_the_model_are_refused(listed, tmp_path, changes, named):
    manifest = load_bundle(listed).manifest
    with np.load(listed / "shortlists.npz") as file:
        arrays = {**file, **changes}
    path = tmp_path / "shortlists.npz"
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(StartupError, match=named):
        read_shortlists(path, manifest.config, manifest.eos_ids)
