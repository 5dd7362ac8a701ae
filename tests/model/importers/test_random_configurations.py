"""Checkpoints of random sizes and weights are converted, served, and give Hugging Face's numbers.

Each is compared as HTTP answers: the log-prob of every token and every attention weight, of a
ragged batch that reaches the last position of a table, or distances beyond T5's longest.
"""

import numpy as np
import pytest

from tests.conftest import opened
from tests.model.importers.checkpoints import store
from tests.model.importers.kinds import LANGUAGES, T5, WRITERS, banned
from tests.model.importers.served import assert_same_answers, convert, start_of

pytestmark = pytest.mark.long
FAMILIES = [kind for kind in WRITERS if kind not in ("nllb", "mbart50", "madlad")]  # other ids only
SHAPES = ("safetensors", "shards", "bin")


def random_bart(random):
    heads, d_ff = int(random.integers(1, 4)), int(random.integers(4, 60))
    return {
        "d_model": heads * int(random.choice([4, 7, 8, 16])),
        "encoder_layers": int(random.integers(1, 3)),
        "decoder_layers": int(random.integers(1, 3)),
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": d_ff,
        "decoder_ffn_dim": d_ff,
        "max_position_embeddings": int(random.integers(24, 60)),
        "activation_function": str(random.choice(["relu", "gelu", "gelu_new", "swish"])),
        "scale_embedding": bool(random.integers(2)),
        "tie_word_embeddings": bool(random.integers(2)),
    }


def random_t5(random):
    functions = ["relu", "gelu", "gated-gelu", "gated-silu", "gated-relu"]
    return {
        "d_model": int(random.integers(5, 33)),
        "d_kv": int(random.choice([4, 7, 8, 16])),
        "d_ff": int(random.integers(4, 60)),
        "num_layers": int(random.integers(1, 3)),
        "num_decoder_layers": int(random.integers(1, 3)),
        "num_heads": int(random.integers(1, 4)),
        "relative_attention_num_buckets": int(random.choice([8, 32])),
        "relative_attention_max_distance": int(random.choice([20, 128])),
        "layer_norm_epsilon": float(random.choice([1e-6, 1e-5, 1e-3])),
        "feed_forward_proj": str(random.choice(functions)),
        "tie_word_embeddings": bool(random.integers(2)),
    }


def random_pairs(random, lengths):
    return [[random.integers(5, 1300, n).tolist() for n in pair] for pair in lengths]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_those_of_hugging_face(tmp_path, family, seed):
    random = np.random.default_rng(seed)
    folder, languages = tmp_path / "checkpoint", LANGUAGES.get(family, {})
    folder.mkdir()
    changes = (random_t5 if family in T5 else random_bart)(random)
    if random.integers(2):
        changes["extra_rows"] = 103 + int(random.integers(9))
    theirs = WRITERS[family](folder, seed, **changes)
    store(theirs, folder, SHAPES[seed % 3])
    bundle = convert(folder)
    start = start_of(bundle, languages)
    longest = (300, 140) if family in T5 else (changes["max_position_embeddings"],) * 2
    lengths = [(7, 5), (2, 9), (longest[0], 3), (4, longest[1] + 1 - len(start))]
    pairs = random_pairs(random, lengths)
    with opened(bundle, precision="fp32") as client:
        assert_same_answers(client, theirs, pairs, bundle, languages, banned(family, theirs))
