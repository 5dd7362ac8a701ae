"""Models at the edges of what can be trained: exported, then opened as the service opens them."""

import pytest
import torch

from model.checkpoint import TrainedModel
from model.data.tokenizers import Unit, build_tokenizer
from model.export.bundle import WeightType, write_bundle
from model.export.manifest import Card, Precision
from model.network.config import InputError, TransformerConfig
from model.network.transformer import Transformer
from service.bundle import load_bundle
from service.runtime.self_check import check_parity
from service.runtime.session import Session
from service.settings import Provider, Settings

CARD = Card(name="edge", task="tests", licence="Apache-2.0", attribution="nobody", notice="none")
SIZES = {
    "source_vocab_size": 12,
    "target_vocab_size": 14,
    "d_model": 32,
    "d_ff": 24,
    "num_heads": 2,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
}


def trained(**changes):
    torch.manual_seed(0)
    tokenizer = build_tokenizer(["abcdefgh"], Unit.characters)
    transformer = Transformer(TransformerConfig(**SIZES | changes)).eval()
    return TrainedModel(transformer, tokenizer, tokenizer)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_source_length": 3, "max_target_length": 2, "rotary": True},
        {"pad_id": 11, "bos_id": 10, "eos_id": 9, "max_target_length": 1},
        {"source_vocab_size": 4, "target_vocab_size": 4, "max_source_length": 1},
    ],
    ids=["few positions", "specials at the end", "one ordinary token"],
)
def test_a_model_that_trains_exports_and_starts(tmp_path, changes):
    write_bundle(trained(**changes), CARD, WeightType.fp32, tmp_path / "edge", Precision.int8)
    bundle = load_bundle(tmp_path / "edge")
    for precision in Precision:
        session = Session(bundle, Settings(precision=precision, provider=Provider.cpu))
        check_parity(session, bundle)


def test_a_model_that_cannot_be_exported_leaves_no_rest(tmp_path):
    model = trained()
    torch.nn.init.constant_(model.transformer.generator.bias, 1e5)
    with pytest.raises(InputError, match="too large for --weights fp16"):
        write_bundle(model, CARD, WeightType.fp16, tmp_path / "edge")
    assert not any(tmp_path.iterdir())
