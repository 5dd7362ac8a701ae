"""The PyTorch side of Heed: define, train, evaluate and export encoder-decoder Transformers."""
