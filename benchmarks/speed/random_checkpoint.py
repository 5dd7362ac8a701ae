"""Write checkpoints of Hugging Face's kinds with random weights, in the shapes of published models.

Vocabularies have the real number of pieces: a few are trained on the built-in texts, the others are
concatenated pairs. Weights are drawn so that the same tokens are best at int8 as at fp32.
"""

import io
import itertools
import json
import random
import string
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from sentencepiece import SentencePieceTrainer, sentencepiece_model_pb2
from torch import Tensor

from model.export.files.tensor_file import PIECE, Source, write_tensors
from model.importers.tokenizers.probes import probes

LANGUAGES = 202
TRAINED = 1500  # pieces that are trained
LONGEST = 16  # letters of a concatenated piece
SMALL = 0.02  # deviation of weights in the layers: what a token reads dominates what it predicts
README = "---\nlicense: cc0-1.0\n---\nRandom weights.\n"
Files = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Shape:
    """A published model: its configuration, its class in transformers, and its tokenizer's files.

    `embedding` is the deviation of the embedding's weights.
    """

    name: str
    config: Callable[[], Any]
    network: str
    files: Callable[[int], Files]
    embedding: float


def nllb_config(changed: Mapping[str, int]) -> Any:
    """Return the configuration of NLLB-600M with changes."""
    sizes: dict[str, Any] = {
        "vocab_size": 256_206,
        "d_model": 1024,
        "encoder_layers": 12,
        "decoder_layers": 12,
        "encoder_ffn_dim": 4096,
        "decoder_ffn_dim": 4096,
        "encoder_attention_heads": 16,
        "decoder_attention_heads": 16,
        "scale_embedding": True,
        "decoder_start_token_id": 2,
    }
    sizes.update(changed)
    return transformers.M2M100Config(**sizes)


def mt5_config() -> Any:
    return transformers.MT5Config(
        vocab_size=250_112,
        d_model=1024,
        d_kv=64,
        d_ff=2816,
        num_layers=24,
        num_heads=16,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        decoder_start_token_id=0,
    )


def nllb_files(vocab_size: int) -> Files:
    """Return NLLB's pieces, its languages after them, and a mask: two ids less than the rows."""
    pieces = vocab_size - 2 - LANGUAGES - 2  # fairseq has one id more than the file, and <mask>
    letters = itertools.product(string.ascii_lowercase, repeat=3)
    codes = [f"{''.join(three)}_Latn" for three in itertools.islice(letters, LANGUAGES - 2)]
    added = enumerate(["eng_Latn", "fra_Latn", *codes, "<mask>"], pieces + 1)
    decoder = {str(i): {"content": name} for i, name in added}
    return {
        "sentencepiece.bpe.model": make_pieces(
            pieces, model_type="bpe", unk_id=0, bos_id=1, eos_id=2, pad_id=-1
        ),
        "tokenizer_config.json": json.dumps({"added_tokens_decoder": decoder}).encode(),
    }


def mt5_files(vocab_size: int) -> Files:
    pieces = make_pieces(
        vocab_size - 12, model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1
    )
    return {"spiece.model": pieces, "tokenizer_config.json": b'{"extra_ids": 0}'}


def make_pieces(count: int, **options: Any) -> bytes:
    """Return a sentencepiece model of `count` pieces."""
    trained = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(probes()),
        model_writer=trained,
        vocab_size=min(TRAINED, count),
        character_coverage=0.98,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    model: Any = sentencepiece_model_pb2.ModelProto()  # pyright: ignore[reportAttributeAccessIssue]
    model.ParseFromString(trained.getvalue())
    chance, known = random.Random(0), {piece.piece for piece in model.pieces}
    parts = [piece.piece for piece in model.pieces if piece.piece.isalpha()]
    score = min(piece.score for piece in model.pieces)
    while len(known) < count:
        text = chance.choice(parts) + chance.choice(parts)
        if len(text) <= LONGEST and text not in known:
            known.add(text)
            parts.append(text)
            score -= 1e-3
            model.pieces.add(piece=text, score=score)
    model.trainer_spec.vocab_size = count
    return model.SerializeToString()


def nllb(name: str, **sizes: int) -> Shape:
    """Return the shape of NLLB-600M, or one that differs in some sizes."""
    network = "M2M100ForConditionalGeneration"
    return Shape(name, partial(nllb_config, sizes), network, nllb_files, 0.3)


NLLB_600M = nllb("NLLB-600M")
MT5_LARGE = Shape("mT5-large", mt5_config, "MT5ForConditionalGeneration", mt5_files, 1.0)
TINY = nllb("tiny", vocab_size=2000, d_model=64, encoder_ffn_dim=64, decoder_ffn_dim=64)


def write_checkpoint(shape: Shape, folder: Path) -> int:
    """Write the folder, and return the bytes of its weights."""
    folder.mkdir(parents=True)
    config = shape.config()
    config.architectures = [shape.network]
    with torch.device("meta"):
        network: Any = getattr(transformers, shape.network)(config)
    config.save_pretrained(folder)
    network.generation_config.save_pretrained(folder)
    sources = {
        name: random_source(name, tuple(tensor.shape), shape.embedding)
        for name, tensor in network.named_parameters()  # each tied one once
    }
    write_tensors(folder / "model.safetensors", sources)
    for name, content in shape.files(config.vocab_size).items():
        (folder / name).write_bytes(content)
    (folder / "README.md").write_text(README, encoding="utf-8")
    return sum(source.size for source in sources.values())


def random_source(name: str, shape: tuple[int, ...], embedding: float) -> Source:
    """Return a tensor by its name. An output projection is like an embedding of another size."""
    if "norm" in name or name.endswith(".bias"):
        value = float(name.endswith("weight"))
        return Source(torch.float32, shape, lambda: iter([torch.full(shape, value)]))
    deviation = {"shared": embedding, "lm_head": 0.3}.get(name.split(".")[-2], SMALL)
    return Source(torch.float32, shape, partial(random_pieces, shape, deviation))


def random_pieces(shape: tuple[int, ...], deviation: float) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    rows = max(1, PIECE // shape[1])
    for start in range(0, shape[0], rows):
        size = min(rows, shape[0] - start), shape[1]
        yield torch.randn(size, generator=generator) * deviation
