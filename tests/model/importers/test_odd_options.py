"""Checkpoints of random sizes with odd options of decoding: whatever is converted, is served."""

import json

import numpy as np
import pytest

from tests.conftest import opened
from tests.model.importers.checkpoints import change
from tests.model.importers.kinds import LANGUAGES, T5, WRITERS
from tests.model.importers.random_models import random_bart, random_t5
from tests.model.importers.served import post, run

pytestmark = pytest.mark.long
KINDS = [kind for kind in WRITERS if kind not in ("nllb", "mbart50", "madlad")]  # other ids only
OPTIONS = {
    "num_beams": (0, 1, 3, 64, 100, None, "4"),
    "max_length": (0, 1, 2, 20, 10**6, None),
    "max_new_tokens": (0, 1, 9, 10**6, None),
    "min_length": (0, 3, 19, 10**4),
    "min_new_tokens": (0, 3, 10**4, None),
    "length_penalty": (-2.0, 0.0, 0.6, 50.0, None),
    "early_stopping": (True, False, "never", None),
    "no_repeat_ngram_size": (0, 1, 2, 10**4),
    "encoder_no_repeat_ngram_size": (0, 1, 3, 65),
    "encoder_repetition_penalty": (0.0, 0.8, 1.0, 1.3),
    "repetition_penalty": (0.0, 0.5, 1.0, 1.3, 100.0),
    "renormalize_logits": (True, False),
    "do_sample": (True, False),
    "temperature": (0.0, 1e-3, 1.0, 50.0, None),
    "top_k": (0, 1, 50, 10**6, None),
    "top_p": (0.0, 0.3, 1.0, None),
    "typical_p": (0.5, 1.0),
    "num_beam_groups": (1, 2),
    "diversity_penalty": (0.0, 0.5),
    "num_return_sequences": (1, 2, 10),
    "suppress_tokens": ([], [5, 6], [10**6], [-1], None),
    "begin_suppress_tokens": ([], [5, 6], None),
    "bad_words_ids": ([[5]], [[5], [7, 6]], [[5, 6]], [], [[]], None),
    "forced_bos_token_id": (None, 5, 10**6, -1),
    "forced_eos_token_id": (None, 2, 5),
    "force_bos_token_to_be_generated": (True, False),
    "eos_token_id": (None, 2, [2, 5], [], 10**6),
    "pad_token_id": (None, 1, 10**6),
    "decoder_start_token_id": (None, 2, [2, 2], 10**6),
    "exponential_decay_length_penalty": ([5, 1.1], None),
    "a key of tomorrow": (1, {"deep": []}),
}


@pytest.mark.parametrize("seed", range(60))
def test_whatever_is_converted_is_served(tmp_path, seed):
    random, kind = np.random.default_rng(seed), KINDS[seed % len(KINDS)]
    folder, bundle = tmp_path / "checkpoint", tmp_path / "bundle"
    folder.mkdir()
    WRITERS[kind](folder, seed, **(random_t5 if kind in T5 else random_bart)(random))
    names = random.choice([*OPTIONS], random.integers(1, 5), replace=False)
    odd = {str(name): OPTIONS[name][random.integers(len(OPTIONS[name]))] for name in names}
    file = ("generation_config.json", "config.json")[int(random.integers(4)) // 3]
    change(folder, file, **json.loads(json.dumps(odd)))
    precision = "auto" if seed % 5 == 0 else "fp32"
    done = run(folder, bundle, "--precision", precision)
    if done.exit_code:  # 3 where transformers does not load an odd config.json
        assert done.exit_code in (2, 3)
        assert any(name in done.stderr for name in odd), done.stderr
        return
    texts = ["hello there", "a"]  # every vocabulary has these letters
    with opened(bundle) as client:
        listed = client.get("/v1/models").json()["models"][0]["languages"]
        languages = {  # a first id that is fixed leaves no target language
            name: code
            for name, code in LANGUAGES.get(kind, {}).items()
            if listed[name.removesuffix("_language")]
        }
        assert len(post(client, "/v1/decode", source=texts, **languages)) == len(texts)
        for beam_size in (1, 4):  # with what the checkpoint sets
            post(client, "/v1/decode", source=texts, beam_size=beam_size, **languages)
