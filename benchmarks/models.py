"""Models of random weights, the same in every system, that never say eos."""

import dataclasses
import string
from pathlib import Path

import ctranslate2
import torch

from model.checkpoint import TrainedModel
from model.data.tokenizers import Unit, build_tokenizer
from model.export.bundle import Card, Precision, WeightType, write_bundle
from model.network.config import TransformerConfig
from model.network.transformer import DecoderLayer, Transformer

BASE = TransformerConfig(
    source_vocab_size=32000,
    target_vocab_size=32000,
    norm_first=True,
    max_source_length=1024,
    max_target_length=513,
)
SMALL = dataclasses.replace(
    BASE,
    source_vocab_size=40,
    target_vocab_size=60,
    d_model=256,
    d_ff=1024,
    num_heads=4,
    d_qk=64,
    d_v=64,
    num_encoder_layers=4,
    num_decoder_layers=4,
)
CONFIGS = {"base": BASE, "small": SMALL}


def random_model(config: TransformerConfig) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(config).eval()
    with torch.no_grad():
        model.generator.bias[[config.pad_id, config.bos_id, config.eos_id]] = -1e4
    return model


def write_models(name: str, folder: Path) -> None:
    """{folder}/heed, a bundle, and {folder}/ctranslate2."""
    config = CONFIGS[name]
    model = random_model(config)
    letters = build_tokenizer([string.ascii_lowercase], Unit.characters)
    card = Card(name=name, task="-", licence="CC0-1.0", attribution="-", notice="-")
    trained = TrainedModel(model, letters, letters)
    write_bundle(trained, card, WeightType.fp32, folder / "heed", Precision.int8)
    write_ctranslate2(model, folder / "ctranslate2")


def tokens(size: int) -> list[str]:
    return [str(index) for index in range(size)]


def write_ctranslate2(model: Transformer, folder: Path) -> None:
    """The weights through CTranslate2's own specification of a Transformer, which has no sines
    where it has rotary."""
    config = model.config
    assert not config.rotary
    spec = ctranslate2.specs.TransformerSpec.from_config(
        (config.num_encoder_layers, config.num_decoder_layers),
        config.num_heads,
        pre_norm=config.norm_first,
        activation=ctranslate2.specs.Activation.RELU,
    )
    sides = ((spec.encoder, model.encoder), (spec.decoder, model.decoder))
    for side, ours in sides:
        embeddings = side.embeddings[0] if side is spec.encoder else side.embeddings
        embeddings.weight = ours.embedding.tokens.weight.detach().numpy()
        side.position_encodings.encodings = ours.embedding.positions.numpy()
        side.scale_embeddings = True
        copy_norm(side.layer_norm, ours.norm)
        for layer, our_layer in zip(side.layer, ours.layers, strict=True):
            copy_layer(layer, our_layer)
    copy_linear(spec.decoder.projection, [model.generator])
    spec.config.decoder_start_token, spec.config.bos_token = str(config.bos_id), str(config.bos_id)
    spec.config.eos_token, spec.config.unk_token = str(config.eos_id), "3"
    spec.register_source_vocabulary(tokens(config.source_vocab_size))
    spec.register_target_vocabulary(tokens(config.target_vocab_size))
    spec.validate()
    spec.optimize()
    folder.mkdir(parents=True)
    spec.save(str(folder))


def copy_layer(layer, ours) -> None:
    own = ours.self_attention
    copy_linear(layer.self_attention.linear[0], [own.query, own.key, own.value])
    copy_linear(layer.self_attention.linear[1], [own.output])
    copy_norm(layer.self_attention.layer_norm, ours.self_sublayer.norm)
    if isinstance(ours, DecoderLayer):
        cross = ours.cross_attention
        copy_linear(layer.attention.linear[0], [cross.query])
        copy_linear(layer.attention.linear[1], [cross.key, cross.value])
        copy_linear(layer.attention.linear[2], [cross.output])
        copy_norm(layer.attention.layer_norm, ours.cross_sublayer.norm)
    copy_linear(layer.ffn.linear_0, [ours.feed_forward.up])
    copy_linear(layer.ffn.linear_1, [ours.feed_forward.down])
    copy_norm(layer.ffn.layer_norm, ours.feed_forward_sublayer.norm)


def copy_linear(spec, layers) -> None:
    spec.weight = torch.cat([layer.weight for layer in layers]).detach().numpy()
    spec.bias = torch.cat([layer.bias for layer in layers]).detach().numpy()


def copy_norm(spec, norm) -> None:
    spec.gamma, spec.beta = norm.weight.detach().numpy(), norm.bias.detach().numpy()
