"""Our weights in a model of Hugging Face transformers.

Its M2M100 family is the same network, except that its sinusoids are arranged in another way and its
output projection has no bias. Both are replaced.
"""

from typing import Any

import torch
from transformers import M2M100Config, M2M100ForConditionalGeneration
from transformers.models.m2m_100.modeling_m2m_100 import M2M100Attention

from benchmarks.kit.process import Call, Decode, Stopwatch, Timed
from model.network.attention import MultiHeadAttention
from model.network.config import TransformerConfig
from model.network.transformer import DecoderLayer, Transformer


def to_hugging_face(model: Transformer) -> M2M100ForConditionalGeneration:
    """Return M2M100 with our weights. M2M100 is always norm_first and never has rotary."""
    config = model.config
    assert config.norm_first, "M2M100 normalises before each sublayer"
    assert not config.rotary, "M2M100 has no rotary positions"
    theirs = M2M100ForConditionalGeneration(m2m100_config(config)).eval()
    sides = (theirs.model.encoder, model.encoder), (theirs.model.decoder, model.decoder)
    for side, ours in sides:
        side.embed_tokens.weight = ours.embedding.tokens.weight
        skipped = torch.zeros(config.pad_id + 1, config.d_model)  # M2M100's begin after pad_id
        table = ours.embedding.positions
        assert table is not None, "M2M100 has a table of positions"
        positions = torch.cat([skipped, table])
        side.embed_positions.register_buffer("weights", positions, persistent=False)
        side.layer_norm.load_state_dict(ours.norm.state_dict())
        for layer, our_layer in zip(side.layers, ours.layers, strict=True):
            copy_to_hugging_face(layer, our_layer)
    theirs.lm_head = model.generator
    theirs.generation_config.forced_eos_token_id = None
    return theirs


def generate_calls(model: Any) -> Decode:
    """Return calls of transformers' own loop, which runs the model for each step. `Any`: `generate`
    is declared for a protocol that these models do not follow."""

    def run(call: Call) -> Timed:
        source_ids = torch.tensor(call.sources, device=model.device)
        with Stopwatch() as watch:
            ids = model.generate(
                input_ids=source_ids,
                attention_mask=torch.ones_like(source_ids),
                max_new_tokens=call.new_tokens,
                num_beams=call.beam_size,
                do_sample=False,
            )
        return watch.timed(ids[:, 1:].tolist())

    return run


def m2m100_config(config: TransformerConfig) -> M2M100Config:
    return M2M100Config(
        vocab_size=max(config.source_vocab_size, config.target_vocab_size),
        max_position_embeddings=config.max_target_length,
        encoder_layers=config.num_encoder_layers,
        decoder_layers=config.num_decoder_layers,
        encoder_ffn_dim=config.d_ff,
        decoder_ffn_dim=config.d_ff,
        encoder_attention_heads=config.num_heads,
        decoder_attention_heads=config.num_heads,
        encoder_layerdrop=0.0,
        decoder_layerdrop=0.0,
        d_model=config.d_model,
        pad_token_id=config.pad_id,
        bos_token_id=config.bos_id,
        eos_token_id=config.eos_id,
        decoder_start_token_id=config.bos_id,
        tie_word_embeddings=False,
    )


def copy_to_hugging_face(layer: Any, ours: Any) -> None:
    """Copy an encoder or decoder layer. `Any`, since ModuleList does not know its layers' types."""
    copy_attention(layer.self_attn, ours.self_attention)
    layer.self_attn_layer_norm.load_state_dict(ours.self_sublayer.norm.state_dict())
    if isinstance(ours, DecoderLayer):
        copy_attention(layer.encoder_attn, ours.cross_attention)
        layer.encoder_attn_layer_norm.load_state_dict(ours.cross_sublayer.norm.state_dict())
    layer.fc1.load_state_dict(ours.feed_forward.up.state_dict())
    layer.fc2.load_state_dict(ours.feed_forward.down.state_dict())
    layer.final_layer_norm.load_state_dict(ours.feed_forward_sublayer.norm.state_dict())


def copy_attention(attention: M2M100Attention, ours: MultiHeadAttention) -> None:
    attention.q_proj.load_state_dict(ours.query.state_dict())
    attention.k_proj.load_state_dict(ours.key.state_dict())
    attention.v_proj.load_state_dict(ours.value.state_dict())
    attention.out_proj.load_state_dict(ours.output.state_dict())
