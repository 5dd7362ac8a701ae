"""The network that the tests of export share, which is therefore traced once."""

SIZES = {
    "source_vocab_size": 12,
    "target_vocab_size": 12,
    "d_model": 32,
    "d_ff": 24,
    "num_heads": 2,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
}
