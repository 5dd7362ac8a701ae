"""Peak memory of an export, measured in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent.parent.parent
EXPORT = """
import json, resource, sys
from pathlib import Path
import torch
from model.checkpoint import TrainedModel
from model.data.tokenizers import Unit, build_tokenizer
from model.export.bundle import WeightType, write_bundle
from model.export.files.weights import round_weights
from model.export.files.manifest import Card, Precision
from model.network.config import TransformerConfig
from model.network.transformer import Transformer

def export(name, **sizes):
    torch.nn.init.xavier_uniform_ = lambda tensor: tensor.data.uniform_(-0.05, 0.05)
    sizes = {"num_heads": 8, "num_encoder_layers": 2, "num_decoder_layers": 2, **sizes}
    model = Transformer(TransformerConfig(**sizes)).eval()
    letters = build_tokenizer(["abcdefgh"], Unit.characters)
    card = Card(name="x", task="t", licence="CC0-1.0", attribution="-", notice="-")
    folder = Path(sys.argv[1]) / name
    trained = TrainedModel(model, letters, letters)
    round_weights(model, WeightType(sys.argv[2]))
    write_bundle(trained, card, WeightType(sys.argv[2]), folder, Precision.both)
    return sum(tensor.nbytes for tensor in model.state_dict().values())

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

export("small", source_vocab_size=12, target_vocab_size=12, d_model=64, d_ff=64)
torchs_own = peak()  # its libraries, and what tracing takes
weights = export("large", source_vocab_size=40000, target_vocab_size=40000, d_model=768, d_ff=3072)
print(json.dumps([weights, peak() - torchs_own]))
"""


@pytest.mark.long
@pytest.mark.parametrize("weight_type", ["fp32", "fp16"])
def test_an_export_needs_half_as_much_memory_as_the_model_again(weight_type, tmp_path):
    command = [sys.executable, "-c", EXPORT, tmp_path, weight_type]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, check=True)
    weights, peak = json.loads(done.stdout)
    assert 400e6 < weights < 600e6
    assert peak < 1.5 * weights
