"""Whole checkpoints of BART's family: random weights, and tokenizers trained here.

`changes` of every writer are fields of config.json; `extra_rows` of the embedding have no token.
"""

import io
import json
from functools import cache

import sentencepiece
import tokenizers
import torch
import transformers
from safetensors.torch import load_file
from torch import nn

from model.importers.tokenizers.probes import probes

LANGUAGES = ("eng_Latn", "fra_Latn", "deu_Latn")
SHAPES = ("safetensors", "shards", "bin")  # of weights on disk
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
README = (  # as OPUS-MT's
    "---\nlanguage:\n- en\n- fr\ntags:\n- translation\n\nlicense: apache-2.0\n---\n# A model\n"
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


def fields(names, changes, **own):
    """Return a configuration: small sizes, what the kind of checkpoint has, and `changes`."""
    chosen = SIZES | {"vocab_size": len(names)} | own | changes
    chosen["vocab_size"] += chosen.pop("extra_rows", 0)
    return chosen


@torch.no_grad()
def randomise(model, seed):
    """Give every weight, norm and bias another value than its first.

    T5 does not scale scores by the width of a head: its weights of queries have learned to be
    smaller. If they were not, scores would be so large that float32 rounds weights by 5e-5.
    """
    torch.manual_seed(seed)
    sines = ("Marian", "Pegasus")  # computed anew when a model is loaded
    for name, parameter in model.named_parameters():
        if "embed_positions" not in name or not type(model).__name__.startswith(sines):
            nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.3)
        if name.endswith("Attention.q.weight"):
            parameter.mul_(model.config.d_kv**-0.5)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_()
    return model.eval()


@torch.no_grad()
def let_texts_end(model):
    """Change the output projection, which must be a matrix of its own, so that texts have many
    tokens and lengths: no token is the best everywhere, and eos is at every fourth place."""
    random = torch.Generator().manual_seed(0)
    projection, read = model.get_output_embeddings(), []
    hook = projection.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    top = min(1300, model.config.vocab_size)
    source, target = (torch.randint(5, top, (16, 20), generator=random) for _ in range(2))
    model(input_ids=source, decoder_input_ids=target)
    hook.remove()
    states = read[0].flatten(0, 1)  # (N, M)
    mean = nn.functional.normalize(states.mean(0), dim=0)
    projection.weight -= (projection.weight @ mean).unsqueeze(1) * mean
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.mul_(0.1)
    logits, eos_id = states @ projection.weight.T, model.config.eos_token_id
    eos, best = logits[:, eos_id], logits.max(1).values
    factors = torch.where(eos > 0, best / eos, torch.inf).sort().values
    projection.weight[eos_id] *= factors[len(factors) // 4]


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


def store(model, folder, shape):
    """Write the weights of a folder again: as `safetensors`, in three `shards` or as a `bin`."""
    if shape == "safetensors":
        return
    stored = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    if shape == "bin":
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        return
    sizes = [tensor.nbytes for tensor in stored.values()]
    model.save_pretrained(folder, max_shard_size=(sum(sizes) - max(sizes)) // 2)
    assert len([*folder.glob("model-*.safetensors")]) >= 3


def write_marian(folder, seed=0, languages=(), **changes):
    """OPUS-MT: two sentencepiece models, one vocabulary, pad last and first of a target. Without
    `languages` it translates from English into French."""
    source, target = train_pieces("unigram"), train_pieces("unigram", ("@@",))
    names = dict.fromkeys(["</s>", "<unk>", *names_of(source), *names_of(target)])
    names.pop("<pad>")
    vocabulary = [*names, *(f">>{code}<<" for code in languages), "<pad>"]
    ids = {name: i for i, name in enumerate(vocabulary)}
    pad = ids["<pad>"]
    special = {"pad_token_id": pad, "eos_token_id": 0, "decoder_start_token_id": pad}
    own = {"scale_embedding": True, "activation_function": "swish"}
    config = transformers.MarianConfig(**fields(vocabulary, changes, **special, **own))
    generation = {"num_beams": 4, "max_length": 24}
    generation |= {"bad_words_ids": [[pad]], "renormalize_logits": True}
    files = {"source__spm": source, "target__spm": target, "vocab__json": ids}
    if not languages:
        files["tokenizer_config__json"] = {"source_lang": "en", "target_lang": "fr"}
    model = transformers.MarianMTModel(config)
    return save(model, folder, generation | special, seed, **files)


def write_marian_of_two_vocabularies(folder, seed=0, **changes):
    """OPUS-MT of the Tatoeba challenge: each side has its own vocabulary, as large as the other."""
    theirs = write_marian(folder, seed, share_encoder_decoder_embeddings=False, **changes)
    names = [*json.loads((folder / "vocab.json").read_text())]
    names[2:-1] = reversed(names[2:-1])
    target = {name: i for i, name in enumerate(names)}
    (folder / "target_vocab.json").write_text(json.dumps(target))
    return theirs


def write_nllb(folder, seed=0, languages=LANGUAGES, **changes):
    """NLLB: fairseq's ids, language tokens after the pieces, a forced language."""
    pieces = train_pieces("bpe")
    names = ["<s>", "<pad>", "</s>", "<unk>", *names_of(pieces)[3:], *languages, "<mask>"]
    added = {str(i): {"content": name} for i, name in enumerate(names) if name in languages}
    own = {"decoder_start_token_id": 2, "scale_embedding": True}
    config = transformers.M2M100Config(**fields(names, changes, **own))
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


def write_m2m100(folder, seed=0, languages=("en", "fr"), **changes):
    """M2M100: ids from vocab.json, language tokens listed without ids after them."""
    pieces = train_pieces("bpe")
    names = ["<s>", "<pad>", "</s>", "<unk>", *names_of(pieces)[3:]]
    own = {"decoder_start_token_id": 2, "scale_embedding": True}
    changes = {"extra_rows": len(languages) + 8} | changes
    config = transformers.M2M100Config(**fields(names, changes, **own))
    generation = {"num_beams": 3, "max_length": 24, "decoder_start_token_id": 2}
    generation |= {"pad_token_id": 1, "eos_token_id": 2, "early_stopping": True}
    return save(
        transformers.M2M100ForConditionalGeneration(config),
        folder,
        generation,
        seed,
        sentencepiece__bpe__model=pieces,
        vocab__json={name: i for i, name in enumerate(names)},
        special_tokens_map__json={"additional_special_tokens": [f"__{c}__" for c in languages]},
    )


def write_small100(folder, seed=0, languages=("en", "fr"), **changes):
    """SMaLL-100: M2M100's files and network, marked by the class of its tokenizer."""
    theirs = write_m2m100(folder, seed, languages, **changes)
    change(folder, "tokenizer_config.json", tokenizer_class="SMALL100Tokenizer")
    return theirs


def write_mbart(folder, seed=0, languages=("en_XX", "fr_XX"), **changes):
    """mBART-25: the language ends the source, and is the first id that the decoder reads."""
    pieces = train_pieces("unigram")
    names = ["<s>", "<pad>", "</s>", "<unk>", *names_of(pieces)[3:], *languages, "<mask>"]
    own = {"decoder_start_token_id": names.index("fr_XX"), "scale_embedding": True}
    config = transformers.MBartConfig(**fields(names, changes, **own))
    generation = {"num_beams": 3, "max_length": 24, "pad_token_id": 1, "eos_token_id": 2}
    generation |= {"decoder_start_token_id": own["decoder_start_token_id"]}
    added = [{"id": i, "content": n} for i, n in enumerate(names) if n in languages]
    return save(
        transformers.MBartForConditionalGeneration(config),
        folder,
        generation,
        seed,
        sentencepiece__bpe__model=pieces,
        tokenizer__json={"added_tokens": added},
    )


def write_mbart50(folder, seed=0, languages=("en_XX", "fr_XX"), **changes):
    """mBART-50: fairseq's ids, languages before and a forced one after."""
    own = {"decoder_start_token_id": 2, "tokenizer_class": "MBart50Tokenizer"}
    theirs = write_mbart(folder, seed, languages, **own | changes)
    theirs.generation_config.update(num_beams=2, decoder_start_token_id=2)
    theirs.generation_config.save_pretrained(folder)
    return theirs


def write_plbart(folder, seed=0, **changes):
    """PLBart: the source's language ends a source, and that of the target is the first id that the
    decoder reads. No file names the start, nor the languages, which the tokenizer's class lists."""
    pieces = train_pieces("bpe")
    names = ["<s>", "<pad>", "</s>", "<unk>", *names_of(pieces)[3:]]
    changes = {"extra_rows": 4} | changes
    config = transformers.PLBartConfig(**fields(names, changes))
    generation = {"num_beams": 3, "max_length": 24, "pad_token_id": 1, "eos_token_id": 2}
    return save(
        transformers.PLBartForConditionalGeneration(config),
        folder,
        generation,
        seed,
        sentencepiece__bpe__model=pieces,
        tokenizer_config__json={"tokenizer_class": "PLBartTokenizer", "language_codes": "base"},
    )


def train_bytes(folder, special, prefix_space):
    """Write vocab.json and merges.txt of a byte-level BPE, and return its vocabulary."""
    tokenizer = tokenizers.ByteLevelBPETokenizer(add_prefix_space=prefix_space)
    tokenizer.train_from_iterator(probes(), PIECES, special_tokens=special, show_progress=False)
    tokenizer.save_model(str(folder))
    return tokenizer.get_vocab()


DIALOGUE = {  # how Blenderbot and BlenderbotSmall decode
    "num_beams": 4,
    "max_length": 24,
    "min_length": 4,
    "length_penalty": 0.65,
    "no_repeat_ngram_size": 3,
    "encoder_no_repeat_ngram_size": 3,
    "decoder_start_token_id": 1,
    "pad_token_id": 0,
    "eos_token_id": 2,
}


def write_blenderbot(folder, seed=0, **changes):
    """Blenderbot: byte-level BPE that reads a text as if it began with a space."""
    names = train_bytes(folder, ["<pad>", "<s>", "</s>", "<unk>", "<mask>"], prefix_space=True)
    config = transformers.BlenderbotConfig(**fields(names, changes))
    return save(transformers.BlenderbotForConditionalGeneration(config), folder, DIALOGUE, seed)


def train_small(folder, special):
    """Write vocab.json and merges.txt of BlenderbotSmall, and return its vocabulary."""
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.normalizer = tokenizers.normalizers.Lowercase()
    library.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [tokenizers.pre_tokenizers.WhitespaceSplit(), tokenizers.pre_tokenizers.Punctuation()]
    )
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=PIECES, end_of_word_suffix="</w>", show_progress=False
    )
    library.train_from_iterator(probes(), trainer)
    model = json.loads(library.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].get)
    names = [each.removesuffix("</w>") if "</w>" in each else f"{each}@@" for each in pieces]
    names = [*special, *names]
    (folder / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))
    merges = [" ".join(pair) for pair in model["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    return names


def write_blenderbot_small(folder, seed=0, **changes):
    """BlenderbotSmall: BPE of lower-case words, nothing around a text."""
    names = train_small(folder, ["__null__", "__start__", "__end__", "__unk__"])
    config = transformers.BlenderbotSmallConfig(**fields(names, changes))
    model = transformers.BlenderbotSmallForConditionalGeneration(config)
    return save(model, folder, DIALOGUE, seed)


def write_bart(folder, seed=0, **changes):
    """BART: byte-level BPE, and a forced bos as of summaries."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    names = train_bytes(folder, special, prefix_space=False)
    own = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    config = transformers.BartConfig(**fields(names, changes, **own))
    generation = {"num_beams": 4, "max_length": 20, "min_length": 8, "length_penalty": 2.0}
    generation |= {"no_repeat_ngram_size": 3, "early_stopping": True, "forced_bos_token_id": 0}
    generation |= {"decoder_start_token_id": 2, "pad_token_id": 1, "eos_token_id": 2}
    return save(transformers.BartForConditionalGeneration(config), folder, generation, seed)


def write_pegasus(folder, seed=0, **changes):
    pieces = train_pieces("unigram")
    changes = {"extra_rows": 103} | changes
    special = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    own = {"scale_embedding": True, **special}
    config = transformers.PegasusConfig(**fields(names_of(pieces), changes, **own))
    generation = {"num_beams": 2, "max_length": 24, "length_penalty": 0.8}
    model = transformers.PegasusForConditionalGeneration(config)
    return save(model, folder, generation | special, seed, spiece__model=pieces)


def change(folder, name, **fields):
    path = folder / name
    content = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(content | fields))
