"""Whole checkpoints of Hugging Face's classes: random weights, and tokenizers trained here."""

import io
import json
from functools import cache

import sentencepiece
import tokenizers
import torch
import transformers
from torch import nn

from model.importers.probes import probes

LANGUAGES = ("eng_Latn", "fra_Latn", "deu_Latn")
PIECES = 1500
SIZES = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "forced_eos_token_id": None,
}
README = (
    "---\nlicense: apache-2.0\nlanguage:\n- en\n- fr\npipeline_tag: translation\n---\n# A model\n"
)


@cache
def train_pieces(kind, symbols=()):
    """Return the bytes of a sentencepiece model of `PIECES` pieces, with user-defined symbols."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(probes()),
        model_writer=model,
        vocab_size=PIECES,
        model_type=kind,
        character_coverage=0.98,
        user_defined_symbols=list(symbols),
        hard_vocab_limit=False,
        pad_id=-1 if kind == "bpe" else 0,
        unk_id=0 if kind == "bpe" else 2,
        bos_id=1 if kind == "bpe" else -1,
        eos_id=2 if kind == "bpe" else 1,
        minloglevel=2,
    )
    return model.getvalue()


def names_of(pieces):
    processor = sentencepiece.SentencePieceProcessor(model_proto=pieces)
    return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]


def randomise(model, seed):
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "embed_positions" not in name:  # sines, which are computed anew when a model is loaded
            nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.3)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_()
    return model.eval()


def save(model, folder, generation, seed, **files):
    """Write the folder as a repository has it."""
    randomise(model, seed)
    model.generation_config = transformers.GenerationConfig(**generation)
    model.save_pretrained(folder)
    (folder / "README.md").write_text(README)
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return model


def write_marian(folder, seed=0, languages=()):
    """OPUS-MT: two sentencepiece models, one vocabulary, pad last and first of a target."""
    source, target = train_pieces("unigram"), train_pieces("unigram", ("@@",))
    names = dict.fromkeys(["</s>", "<unk>", *names_of(source), *names_of(target)])
    names.pop("<pad>")
    vocabulary = [*names, *(f">>{code}<<" for code in languages), "<pad>"]
    ids = {name: i for i, name in enumerate(vocabulary)}
    pad = ids["<pad>"]
    config = transformers.MarianConfig(
        vocab_size=len(vocabulary),
        pad_token_id=pad,
        eos_token_id=0,
        decoder_start_token_id=pad,
        scale_embedding=True,
        activation_function="swish",
        **SIZES,
    )
    generation = {
        "num_beams": 4,
        "max_length": 24,
        "bad_words_ids": [[pad]],
        "renormalize_logits": True,
        "decoder_start_token_id": pad,
        "pad_token_id": pad,
        "eos_token_id": 0,
    }
    files = {"source__spm": source, "target__spm": target, "vocab__json": ids}
    return save(transformers.MarianMTModel(config), folder, generation, seed, **files)


def write_nllb(folder, seed=0):
    """NLLB: fairseq's ids, language tokens after the pieces, a forced language."""
    pieces = train_pieces("bpe")
    names = ["<s>", "<pad>", "</s>", "<unk>", *names_of(pieces)[3:], *LANGUAGES, "<mask>"]
    added = {str(i): {"content": name} for i, name in enumerate(names) if name in LANGUAGES}
    config = transformers.M2M100Config(
        vocab_size=len(names), decoder_start_token_id=2, scale_embedding=True, **SIZES
    )
    generation = {"num_beams": 2, "max_length": 24, "decoder_start_token_id": 2}
    generation |= {"pad_token_id": 1, "eos_token_id": 2, "length_penalty": 0.8}
    generation |= {"no_repeat_ngram_size": 3, "repetition_penalty": 1.3}
    return save(
        transformers.M2M100ForConditionalGeneration(config),
        folder,
        generation,
        seed,
        sentencepiece__bpe__model=pieces,
        tokenizer_config__json={"added_tokens_decoder": added},
    )


def write_t5(folder, seed=0, gated=True):
    pieces = train_pieces("unigram")
    config = transformers.T5Config(
        vocab_size=len(names_of(pieces)) + 128,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=2,
        feed_forward_proj="gated-gelu" if gated else "relu",
        tie_word_embeddings=not gated,
        decoder_start_token_id=0,
    )
    generation = {"max_length": 24, "decoder_start_token_id": 0}
    generation |= {"pad_token_id": 0, "eos_token_id": 1}
    return save(
        transformers.T5ForConditionalGeneration(config),
        folder,
        generation,
        seed,
        spiece__model=pieces,
    )


def write_m2m100(folder, seed=0):
    """M2M100: ids from vocab.json, language tokens listed without ids after them."""
    pieces = train_pieces("bpe")
    names = ["<s>", "<pad>", "</s>", "<unk>", *names_of(pieces)[3:]]
    languages = ["__en__", "__fr__"]
    config = transformers.M2M100Config(
        vocab_size=len(names) + 10, decoder_start_token_id=2, scale_embedding=True, **SIZES
    )
    generation = {"num_beams": 3, "max_length": 24, "decoder_start_token_id": 2}
    generation |= {"pad_token_id": 1, "eos_token_id": 2, "early_stopping": True}
    return save(
        transformers.M2M100ForConditionalGeneration(config),
        folder,
        generation,
        seed,
        sentencepiece__bpe__model=pieces,
        vocab__json={name: i for i, name in enumerate(names)},
        special_tokens_map__json={"additional_special_tokens": languages},
    )


def write_mbart50(folder, seed=0):
    """mBART-50: fairseq's ids, languages before and a forced one after."""
    pieces = train_pieces("unigram")
    names = ["<s>", "<pad>", "</s>", "<unk>", *names_of(pieces)[3:], "en_XX", "fr_XX", "<mask>"]
    added = [{"id": i, "content": n} for i, n in enumerate(names) if n in ("en_XX", "fr_XX")]
    config = transformers.MBartConfig(
        vocab_size=len(names),
        decoder_start_token_id=2,
        tokenizer_class="MBart50Tokenizer",
        scale_embedding=True,
        **SIZES,
    )
    generation = {"num_beams": 2, "max_length": 24, "decoder_start_token_id": 2}
    generation |= {"pad_token_id": 1, "eos_token_id": 2}
    return save(
        transformers.MBartForConditionalGeneration(config),
        folder,
        generation,
        seed,
        sentencepiece__bpe__model=pieces,
        tokenizer__json={"added_tokens": added},
    )


def write_bart(folder, seed=0):
    """BART: byte-level BPE, and a forced bos as of summaries."""
    tokenizer = tokenizers.ByteLevelBPETokenizer(add_prefix_space=False)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer.train_from_iterator(probes(), PIECES, special_tokens=special, show_progress=False)
    tokenizer.save_model(str(folder))
    config = transformers.BartConfig(
        vocab_size=tokenizer.get_vocab_size(),
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
        **SIZES,
    )
    generation = {"num_beams": 4, "max_length": 20, "min_length": 8, "length_penalty": 2.0}
    generation |= {"no_repeat_ngram_size": 3, "early_stopping": True, "forced_bos_token_id": 0}
    generation |= {"decoder_start_token_id": 2, "pad_token_id": 1, "eos_token_id": 2}
    return save(transformers.BartForConditionalGeneration(config), folder, generation, seed)


def write_pegasus(folder, seed=0):
    pieces = train_pieces("unigram")
    config = transformers.PegasusConfig(
        vocab_size=len(names_of(pieces)) + 103,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        scale_embedding=True,
        **SIZES,
    )
    generation = {"num_beams": 2, "max_length": 24, "length_penalty": 0.8}
    generation |= {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
    model = transformers.PegasusForConditionalGeneration(config)
    return save(model, folder, generation, seed, spiece__model=pieces)


def write_madlad(folder, seed=0):
    """MADLAD: T5 with a start of its own, and languages that are pieces."""
    pieces = train_pieces("unigram", ("<2en>", "<2fr>"))
    config = transformers.T5Config(
        vocab_size=len(names_of(pieces)),
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=2,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        decoder_start_token_id=3,
        pad_token_id=0,
        eos_token_id=1,
    )
    generation = {"max_length": 24, "decoder_start_token_id": 3}
    generation |= {"pad_token_id": 0, "eos_token_id": 1}
    return save(
        transformers.T5ForConditionalGeneration(config),
        folder,
        generation,
        seed,
        spiece__model=pieces,
        tokenizer_config__json={"extra_ids": 0},
    )
