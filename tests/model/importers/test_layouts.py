"""Tensors that are named, shared or left out as real repositories do it give the same numbers."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from model.network.config import InputError, Tied
from tests.model.importers.random_models import assert_same_numbers, random_model, read, save

LENGTHS = [7, 2, 12], [5, 9, 1]
NAMES = {
    "S": "shared.weight",
    "E": "encoder.embed_tokens.weight",
    "D": "decoder.embed_tokens.weight",
    "L": "lm_head.weight",
}
CROSS = "decoder.block.{}.layer.1.EncDecAttention.relative_attention_bias.weight"

OF_TRANSFORMERS_2 = (
    *("d_ff", "d_kv", "d_model", "num_heads", "num_layers", "vocab_size", "dropout_rate"),
    *("decoder_start_token_id", "eos_token_id", "pad_token_id", "initializer_factor"),
    *("is_encoder_decoder", "layer_norm_epsilon", "model_type", "relative_attention_num_buckets"),
)


def write(model, folder, change):
    """Save a model, after `change` of its tensors by name and of its configuration."""
    save(model, folder, "safetensors")
    tensors = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    change(tensors, config)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


def load(folder):
    """Return the model that Hugging Face reads from a folder."""
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )


def without_shared(tensors, config):
    tensors["decoder.embed_tokens.weight"] = tensors.pop("shared.weight")


def with_copies(tensors, config):
    """Old files have a tensor for each name of a tied matrix."""
    prefix = "" if "shared.weight" in tensors else "model."
    shared = tensors[f"{prefix}shared.weight"]
    for name in ("encoder.embed_tokens", "decoder.embed_tokens"):
        tensors[f"{prefix}{name}.weight"] = shared.clone()
    tensors.setdefault("lm_head.weight", shared.clone())


def without_positions(tensors, config):
    for name in [name for name in tensors if "embed_positions" in name]:
        del tensors[name]


def with_positions(tensors, config):
    """Old files of fairseq's have a table, which is computed and may have other rows."""
    for side in ("encoder", "decoder"):
        tensors[f"model.{side}.embed_positions.weights"] = torch.zeros(5, config["d_model"])


def without_bias(tensors, config):
    del tensors["final_logits_bias"]


def with_bias_of_cross_attention(tensors, config):
    for layer in range(config["num_decoder_layers"]):
        tensors[CROSS.format(layer)] = torch.ones(32, config["num_heads"])


def with_few_keys(tensors, config):
    """Old configurations leave out what they do not change."""
    for key in ("tie_word_embeddings", "scale_decoder_outputs", "layer_norm_epsilon"):
        config.pop(key, None)


def says_untied(tensors, config):
    config["tie_word_embeddings"] = False


def only(held, tensors):
    """Keep one tensor, each of other values, for every letter of `held`: Shared, the Encoder's
    embedding, the Decoder's, and the output (L)."""
    prefix = "" if "shared.weight" in tensors else "model."
    embedding = tensors[f"{prefix}shared.weight"]
    for number, (letter, name) in enumerate(NAMES.items()):
        name = name if letter == "L" else prefix + name
        tensors.pop(name, None)
        if letter in held:
            tensors[name] = embedding.roll(number, 0).contiguous()


@pytest.mark.parametrize(
    ("family", "change", "tied"),
    [
        ("t5 1.1", without_shared, Tied.embeddings),  # MADLAD
        ("t5", without_shared, Tied.all),
        ("t5", with_copies, Tied.all),
        ("mt5", with_copies, Tied.embeddings),
        ("bart", with_copies, Tied.all),
        ("t5", with_few_keys, Tied.all),
        ("t5", with_bias_of_cross_attention, Tied.all),
        ("umt5", with_bias_of_cross_attention, Tied.all),
        ("pegasus", without_positions, Tied.all),
        ("m2m_100", with_positions, Tied.all),
        ("mbart", without_bias, Tied.all),
        ("bart", says_untied, Tied.all),
        ("t5", says_untied, Tied.all),
    ],
)
def test_a_model_is_the_same_in_every_layout(tmp_path, family, change, tied):
    theirs = random_model(family, 1)
    if change is without_bias:
        theirs.final_logits_bias.zero_()
    write(theirs, tmp_path, change)
    ours = read(tmp_path)
    assert ours.config.tied is tied
    assert_same_numbers(ours, theirs, *LENGTHS)


def test_a_t5_of_transformers_2_is_read(tmp_path):
    """Its class had another name then, and its configuration had fewer keys."""

    def as_then(tensors, config):
        kept = {key: value for key, value in config.items() if key in OF_TRANSFORMERS_2}
        config.clear()
        config.update(kept, architectures=["T5WithLMHeadModel"], n_positions=512, output_past=True)

    then = {"feed_forward_proj": "relu", "relative_attention_max_distance": 128}
    theirs = random_model("t5", 1, num_layers=2, num_decoder_layers=2, **then)
    write(theirs, tmp_path, as_then)
    assert_same_numbers(read(tmp_path), theirs, *LENGTHS)


@pytest.mark.parametrize("family", ["bart", "mbart", "marian", "m2m_100", "t5", "mt5", "umt5"])
def test_a_projection_of_its_own_is_read_though_the_configuration_says_tied(tmp_path, family):
    def own_projection(tensors, config):
        shared = tensors["shared.weight" if "shared.weight" in tensors else "model.shared.weight"]
        tensors["lm_head.weight"] = torch.randn_like(shared) * 0.3
        config["tie_word_embeddings"] = True

    write(random_model(family, 1), tmp_path, own_projection)
    theirs = load(tmp_path)
    projection = load_file(tmp_path / "model.safetensors")["lm_head.weight"]
    assert torch.equal(theirs.get_output_embeddings().weight, projection)
    assert_same_numbers(read(tmp_path), theirs, *LENGTHS)


@pytest.mark.parametrize(
    ("family", "held"),
    [
        *(("bart", held) for held in ("E", "D", "L", "SL", "EL", "DL", "ED")),
        *(("t5", held) for held in ("E", "D", "L", "SL", "EL", "DL")),
        ("mbart", "L"),
        ("m2m_100", "E"),
        ("pegasus", "EL"),
        ("marian", "L"),
        ("mt5", "L"),
        ("umt5", "D"),
    ],
)
def test_a_tied_matrix_is_read_under_each_of_its_names(tmp_path, family, held):
    write(random_model(family, 1), tmp_path, lambda tensors, _: only(held, tensors))
    assert_same_numbers(read(tmp_path), load(tmp_path), *LENGTHS)


@pytest.mark.parametrize("name", ["lm_head.weight", "model.decoder.embed_tokens.weight"])
def test_an_output_tied_to_one_of_two_embeddings_is_read_under_both_names(tmp_path, name):
    def keep_one(tensors, config):
        other = tensors.pop("model.decoder.embed_tokens.weight")
        tensors[name] = tensors.pop("lm_head.weight", other)

    write(random_model("marian of two vocabularies", 1), tmp_path, keep_one)
    ours = read(tmp_path)
    assert ours.config.tied is Tied.target
    assert_same_numbers(ours, load(tmp_path), *LENGTHS)


def test_embeddings_of_two_vocabularies_do_not_stand_for_each_other(tmp_path):
    source = "model.encoder.embed_tokens.weight"
    model = random_model("marian of two vocabularies", 1)
    write(model, tmp_path, lambda tensors, _: tensors.pop(source))
    with pytest.raises(InputError, match=f"has no tensor {source}"):
        read(tmp_path)


@pytest.mark.parametrize("family", ["pegasus", "marian"])
@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
def test_stored_sinusoids_count_before_computed_ones(tmp_path, family, precision):
    """Pegasus stores its table, and rounds it in half precision; Marian's own writer does not."""

    def store_table(tensors, config):
        for side in ("encoder", "decoder"):
            table = theirs.get_submodule(f"model.{side}.embed_positions").weight
            tensors[f"model.{side}.embed_positions.weight"] = table.data.clone()

    theirs = random_model(family, 1).to(precision)
    write(theirs, tmp_path, store_table)
    loaded = load(tmp_path)
    assert torch.equal(
        loaded.model.encoder.embed_positions.weight.to(precision).float(),
        loaded.model.encoder.embed_positions.weight,
    )
    assert_same_numbers(read(tmp_path), loaded, *LENGTHS)


def test_positions_of_m2m100_begin_after_the_pad(tmp_path):
    theirs = random_model("m2m_100", 1, pad_token_id=0)
    save(theirs, tmp_path, "safetensors")
    assert_same_numbers(read(tmp_path), theirs, *LENGTHS)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pad_token_id": None}))
    with pytest.raises(InputError, match="pad_token_id None; expected an id: positions"):
        read(tmp_path)


def test_a_table_of_distances_that_t5_does_not_read_is_refused(tmp_path):
    name = "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"

    def second_table(tensors, config):
        tensors[name] = tensors[name.replace("block.1", "block.0")].clone()

    write(random_model("t5", 1), tmp_path, second_table)
    with pytest.raises(InputError, match=f"1 tensor that a model .* {name}"):
        read(tmp_path)
