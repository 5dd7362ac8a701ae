"""python -m tests.make_fixture FOLDER: write a small bundle of random weights, and in fp16/ of the
folder above it the same at fp16.

It differs from the default model: post-norm, fp32 weights, other sizes on the two sides, few
positions, characters as the target.
"""

import string
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from model.checkpoint import TrainedModel
from model.data.tokenizers import Unit, build_tokenizer
from model.export.bundle import WeightType, write_bundle
from model.export.files.manifest import Card, Precision
from model.network.config import TransformerConfig
from model.network.transformer import Transformer
from tests.tracing import traced_once


def main(folder: Path) -> None:
    torch.manual_seed(1)
    source = build_tokenizer(["red green blue one two three"], Unit.words)
    target = build_tokenizer([string.ascii_lowercase[:9]], Unit.characters)
    config = TransformerConfig(
        source_vocab_size=source.get_vocab_size(),
        target_vocab_size=target.get_vocab_size(),
        d_model=35,
        d_ff=40,
        num_heads=5,
        d_qk=7,
        d_v=6,
        num_encoder_layers=3,
        num_decoder_layers=2,
        max_source_length=20,
        max_target_length=40,
    )
    card = Card(
        name="tiny", task="tests", licence="Apache-2.0", attribution="random weights", notice="none"
    )
    trained = TrainedModel(Transformer(config).eval(), source, target)
    with TemporaryDirectory() as graphs, traced_once(Path(graphs)):
        write_bundle(trained, card, WeightType.fp32, folder)
        half = folder.parent / "fp16" / folder.name
        half.parent.mkdir(exist_ok=True)
        write_bundle(trained, card, WeightType.fp32, half, Precision.fp16)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
