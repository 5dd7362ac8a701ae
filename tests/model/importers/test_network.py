"""The proof of the network counts the texts that it decodes as the reference does."""

import pytest
import torch

from model.export.checks.answers import torch_log_probs
from model.importers.proofs.hugging_face import Reference
from model.importers.proofs.networks import prove_network
from model.network.config import TransformerConfig
from model.network.transformer import Transformer

START = 2  # ids that every target begins with
PAIRS = [([5, 6, 7], [1, 4, 8, 9]), ([8], [1, 4])]


def random_network():
    torch.manual_seed(0)
    sizes = {"source_vocab_size": 20, "target_vocab_size": 20, "d_model": 16, "d_ff": 16}
    layers = {"num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}
    return Transformer(TransformerConfig(**sizes, **layers)).eval()


@pytest.mark.parametrize(
    ("text", "place", "alike"),
    [
        (0, 0, 2),  # a token that is given
        (0, START - 1, 1),
        (0, 3, 1),  # after the last token, where a text may end
        (1, START - 1, 1),
    ],
)
def test_another_likeliest_token_is_another_text(text, place, alike):
    model = random_network()
    answers = [torch_log_probs(model, source, target) for source, target in PAIRS]
    row = answers[text][place]
    row[(row.argmax() + 1) % len(row)] = row.max() + 1e-6
    proof = prove_network(model, Reference(PAIRS, answers), START)
    assert proof.result.startswith(f"{alike} of 2 texts are decoded as by `generate`; ")
