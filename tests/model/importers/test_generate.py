"""Requests without options decode as `generate` does with the folder's generation_config.json."""

import numpy as np
import pytest
import torch
import transformers

from model.importers.tokenizers.probes import probes
from tests.conftest import opened
from tests.model.importers.checkpoints import let_texts_end
from tests.model.importers.kinds import LANGUAGES, WRITERS
from tests.model.importers.served import convert, post, start_of
from tests.tracing import without_gates

pytestmark = pytest.mark.long
BEAMS = 4
TEXTS = probes()[:40]
SETTINGS = [  # where early_stopping is absent, it is false
    ("marian", {}),
    ("marian", {"early_stopping": True, "length_penalty": 2.0}),
    ("marian", {"no_repeat_ngram_size": 2, "min_new_tokens": 3, "suppress_tokens": [9, 40]}),
    ("marian", {"no_repeat_ngram_size": 2, "repetition_penalty": 1.3}),
    ("marian", {"eos_token_id": [0, 9, 40], "bad_words_ids": [[9, 9], [40, 9], [5]]}),
    ("marian", {"encoder_repetition_penalty": 1.3, "encoder_no_repeat_ngram_size": 2}),
    ("nllb", {"length_penalty": 0.8, "no_repeat_ngram_size": 3}),
    ("m2m100", {"early_stopping": False, "length_penalty": 2.0}),
    ("mbart", {"early_stopping": True, "length_penalty": 0.8}),
    ("small100", {"early_stopping": False}),
    ("plbart", {"length_penalty": 0.8, "max_length": 12}),  # longer ones tie in float32
    ("blenderbot", {}),  # a least length, a length penalty, no n-grams of the source
    ("blenderbot_small", {"early_stopping": True, "no_repeat_ngram_size": 2}),
    ("bart", {}),  # a forced bos, a length penalty of 2, no_repeat_ngram_size 3, least lengths
    ("bart", {"early_stopping": None, "length_penalty": 0.8, "no_repeat_ngram_size": 0}),
    ("bart", {"encoder_repetition_penalty": 1.3, "bad_words_ids": [[9, 40]], "min_length": 4}),
    ("t5", {"encoder_repetition_penalty": 1.2, "encoder_no_repeat_ngram_size": 2}),
    ("t5", {"eos_token_id": [1, 9, 40, 77], "min_new_tokens": 3}),
    ("pegasus", {"early_stopping": False}),
    ("flan", {"early_stopping": True}),  # a repetition penalty and other rules
    ("madlad", {"length_penalty": 2.0}),
    ("byt5", {"early_stopping": True}),
    ("codet5", {"length_penalty": 0.8, "no_repeat_ngram_size": 3}),
]


def up_to_eos(ids, ends):
    return next((ids[: i + 1] for i, each in enumerate(ids) if each in ends), ids)


def write(kind, folder, options):
    """Write a checkpoint with these options of `generate`, whose texts end at many lengths."""
    theirs = WRITERS[kind](folder, tie_word_embeddings=False)
    let_texts_end(theirs)
    theirs.generation_config.update(num_beams=BEAMS, **options)
    theirs.save_pretrained(folder)
    theirs.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    return theirs


@pytest.mark.parametrize(("kind", "options"), SETTINGS)
def test_every_beam_is_that_of_generate(tmp_path, kind, options):
    folder, languages = tmp_path / "checkpoint", LANGUAGES.get(kind, {})
    folder.mkdir()
    theirs = write(kind, folder, options)
    with without_gates():
        bundle = convert(folder)
    start, ends = start_of(bundle, languages), theirs.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    forced = {"forced_bos_token_id": start[1]} if kind in ("nllb", "m2m100") else {}
    forced |= {"decoder_start_token_id": start[0]} if kind == "plbart" else {}
    with opened(bundle, precision="fp32") as client:
        sources = post(client, "/v1/tokenize", text=TEXTS, **languages)
        results = post(client, "/v1/decode", source=TEXTS, num_hypotheses=BEAMS, **languages)
    ended = set()
    for source, result in zip(sources, results, strict=True):
        found = theirs.generate(
            torch.tensor([source["token_ids"]]),
            num_return_sequences=BEAMS,
            return_dict_in_generate=True,
            output_scores=True,
            **forced,
        )
        expected = [up_to_eos(ids, ends) for ids in found.sequences[:, len(start) :].tolist()]
        scores = [each["score"] for each in result["hypotheses"]]
        theirs_scores = found.sequences_scores.numpy()
        np.testing.assert_allclose(scores, theirs_scores, rtol=1e-4, atol=1e-5)
        ranks = [expected.index(each["token_ids"]) for each in result["hypotheses"]]
        np.testing.assert_allclose(theirs_scores[ranks], theirs_scores, rtol=1e-6)  # but for ties
        ended |= {len(ids) for ids in expected if ids[-1] in ends}
    assert len(ended) > 1  # lengths
