"""Wrong values of config.json and generation_config.json are one sentence, never a traceback."""

import json
import math
import random

import pytest

from model.importers.card import task_lines
from model.importers.checkpoint import Checkpoint
from model.importers.convert import ban_words, check_sizes, read_model
from model.importers.proofs.versions import describe_differences
from model.importers.usage.usage import read_usage
from model.importers.vocabularies import read_vocabularies
from model.network.config import InputError
from tests.model.importers.kinds import WRITERS

FILES = ("config.json", "generation_config.json")
LONG = ("marian", "mbart", "pegasus", "t5", "flan")
KINDS = ("bart", "m2m100", "umt5", *(pytest.param(kind, marks=pytest.mark.long) for kind in LONG))
VALUES = (None, "", "x", "1", True, False, 0, -1, 1, 2, 3, 65, 10**6, 10**12, 1.5, 0.0, -0.5, 1e300)
VALUES += (math.nan, math.inf, [], [1], [1, 2], [[1]], [[1, 2]], ["a"], [None], {}, {"a": 1}, [{}])
MORE = {  # keys that a file may have too
    "config.json": (
        *("hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim", "dense_act_fn"),
        *("is_gated_act", "share_encoder_decoder_embeddings", "task_specific_params", "num_beams"),
        *("scale_decoder_outputs", "layer_norm_epsilon", "quantization_config", "bad_words_ids"),
        *("relative_attention_num_buckets", "relative_attention_max_distance", "suppress_tokens"),
        *("num_decoder_layers", "feed_forward_proj", "architectures", "tie_word_embeddings"),
        *("max_length", "min_length", "do_sample", "force_bos_token_to_be_generated"),
    ),
    "generation_config.json": (
        *("num_beams", "length_penalty", "early_stopping", "no_repeat_ngram_size", "max_length"),
        *("repetition_penalty", "min_length", "max_new_tokens", "min_new_tokens", "bad_words_ids"),
        *("suppress_tokens", "forced_bos_token_id", "renormalize_logits", "do_sample"),
        *("begin_suppress_tokens", "stop_strings", "guidance_scale", "sequence_bias"),
        *("_from_model_config", "force_bos_token_to_be_generated"),
    ),
}


@pytest.fixture(scope="module", params=KINDS)
def written(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    WRITERS[request.param](folder)
    return folder, read_vocabularies(Checkpoint(folder))


def read_all(folder, vocabularies):
    """Read what `convert` reads of both files, but for the kind of the tokenizer."""
    checkpoint = Checkpoint(folder)
    model = read_model(checkpoint)
    check_sizes(checkpoint, vocabularies, model.config)
    usage = read_usage(checkpoint, vocabularies, model.config)
    ban_words(checkpoint, model, usage)
    describe_differences(checkpoint)
    task_lines(checkpoint.config.get("task_specific_params"), 0)


def refusal(folder, vocabularies):
    """Return why the files are refused; "" if they are not."""
    try:
        read_all(folder, vocabularies)
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("tries", [30, pytest.param(1000, marks=pytest.mark.long)])
def test_a_wrong_value_is_read_or_refused_in_one_line(written, tries):
    folder, vocabularies = written
    chance = random.Random(tries)
    whole = {name: json.loads((folder / name).read_text()) for name in FILES}
    for _ in range(tries):
        name = chance.choice(FILES)
        key = chance.choice([*whole[name], *MORE[name]])
        fields = {**whole[name], key: chance.choice(VALUES)}
        if chance.random() < 0.1:
            del fields[key]
        (folder / name).write_text(json.dumps(fields))
        if name == "config.json" and chance.random() < 0.3:
            (folder / "generation_config.json").unlink()
        said = refusal(folder, vocabularies)
        assert "\n" not in said
        assert not said or said.startswith(str(folder))
        if said and not isinstance(fields.get(key), int | str | None):
            assert key in said
        for each, content in whole.items():
            (folder / each).write_text(json.dumps(content))
