"""Log-probs by the torch model."""

import torch


@torch.no_grad()
def log_probs_of(trained, source, target):
    """Return the log-probs of what follows each id of `target`, as the decoder reads it: (T, V)."""
    ids = [torch.tensor([each]) for each in (source, target)]
    lengths = [torch.tensor([len(each)]) for each in (source, target)]
    return trained.transformer(ids[0], lengths[0], ids[1], lengths[1])[0].log_softmax(-1).numpy()
