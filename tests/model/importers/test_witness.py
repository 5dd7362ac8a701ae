"""CTranslate2 converts the same folders, and decodes the same hypotheses."""

import json

import ctranslate2
import pytest
import torch

from model.importers.tokenizers.probes import probes
from tests.conftest import opened
from tests.model.importers.checkpoints import let_texts_end
from tests.model.importers.kinds import LANGUAGES, WRITERS
from tests.model.importers.served import convert, post, start_of

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses"),
]
TEXTS = probes()[:40]
LENGTH = 20
SEARCH = {"early_stopping": True, "no_repeat_ngram_size": 0}
SEARCH |= {"max_new_tokens": LENGTH, "min_new_tokens": 1, "repetition_penalty": 1.0}
# CTranslate2 reads these keys of old configurations; today's classes no longer have them
POST_NORM = {"normalize_before": False, "normalize_embedding": True}
PRE_NORM = {"normalize_before": True, "normalize_embedding": False}
OWN = {"tie_word_embeddings": False}
KINDS = {
    "marian": OWN,
    "m2m100": PRE_NORM | OWN,
    "bart": POST_NORM | OWN,
    "pegasus": PRE_NORM | OWN,
    "t5": {"extra_rows": 100},  # no rows without a token
    "flan": {"extra_rows": 100},
    "madlad": {},
}
# States that CTranslate2 scales before the projection although it is not tied: other log-probs
SCALED = ("flan", "madlad")


@torch.no_grad()
def write(kind, folder):
    """Write a checkpoint whose texts end at many lengths, and without a forced bos, which
    CTranslate2 does not know. Of Marian it knows that the embedding of padding is zero."""
    theirs = WRITERS[kind](folder, **KINDS[kind])
    let_texts_end(theirs)
    if kind == "marian":
        for side in (theirs.get_encoder(), theirs.get_decoder()):
            side.embed_tokens.weight[theirs.config.pad_token_id] = 0
    theirs.generation_config.update(forced_bos_token_id=None)
    theirs.save_pretrained(folder)
    return theirs


def penalty_of(start):
    """Return the length penalty: 0 with a language, which CTranslate2 does not count as length."""
    return 1.0 if len(start) == 1 else 0.0


def translate(folder, sources, start, beam_size):
    """Return the ids of every hypothesis. Names of tokens are those of CTranslate2's vocabulary."""
    converted = folder.parent / f"ctranslate2-{beam_size}"
    ctranslate2.converters.TransformersConverter(str(folder)).convert(str(converted))
    names = json.loads((converted / "shared_vocabulary.json").read_text())
    ids = {name: i for i, name in enumerate(names)}
    found = ctranslate2.Translator(str(converted), compute_type="float32").translate_batch(
        [[names[i] for i in source] for source in sources],
        [[names[i] for i in start[1:]]] * len(sources),
        beam_size=beam_size,
        length_penalty=penalty_of(start),
        num_hypotheses=beam_size,
        min_decoding_length=len(start),  # the prefix counts
        max_decoding_length=LENGTH + len(start) - 1,
        return_end_token=True,
    )
    return [
        [[ids[name] for name in each][len(start) - 1 :] for each in result.hypotheses]
        for result in found
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_hypotheses_are_those_of_ctranslate2(tmp_path, kind):
    folder, languages = tmp_path / "checkpoint", LANGUAGES.get(kind, {})
    folder.mkdir()
    write(kind, folder)
    bundle = convert(folder)
    start = start_of(bundle, languages)
    with opened(bundle, precision="fp32") as client:
        sources = post(client, "/v1/tokenize", text=TEXTS, **languages)
        ids = [source["token_ids"] for source in sources]
        for beam_size in (1,) if kind in SCALED else (1, 4):
            beams = {"beam_size": beam_size, "num_hypotheses": beam_size}
            beams["length_penalty"] = penalty_of(start)
            results = post(client, "/v1/decode", source=TEXTS, **beams, **SEARCH, **languages)
            expected = translate(folder, ids, start, beam_size)
            for result, hypotheses in zip(results, expected, strict=True):
                assert [each["token_ids"] for each in result["hypotheses"]] == hypotheses
