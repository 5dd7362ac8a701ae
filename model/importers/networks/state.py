"""Give the tensors of a checkpoint the names of our network, and build it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from model.importers.checkpoint import Checkpoint
from model.importers.files.names import shortened
from model.network.config import InputError, Tied, TransformerConfig
from model.network.transformer import Transformer
from model.network.tying import OUTPUT_WEIGHT, SOURCE_WEIGHT, TARGET_WEIGHT

TIED = {  # (both embeddings are equal, the output projection equals the target embedding)
    (True, True): Tied.all,
    (True, False): Tied.embeddings,
    (False, True): Tied.target,
    (False, False): Tied.no,
}
BANNED = -1e4  # added to the logit of a token that is never generated
ADVICE = "is it fine-tuned with adapters, or of another kind?"


@dataclass(slots=True)
class StateReader:
    """Tensors under our names, and for each the name that it has in the checkpoint."""

    checkpoint: Checkpoint
    state: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    origins: dict[str, str] = field(default_factory=dict[str, str])

    def put(self, ours: str, tensor: Tensor, theirs: str) -> None:
        self.state[ours], self.origins[ours] = tensor.float().contiguous(), theirs

    def copy(self, ours: str, theirs: str) -> None:
        self.put(ours, self.checkpoint.tensor(theirs), theirs)

    def linear(self, ours: str, theirs: str, scale: float = 1.0) -> None:
        """Read a projection, multiplied by `scale`. A bias that the checkpoint lacks is zero."""
        name, bias = f"{theirs}.weight", f"{theirs}.bias"
        weight = self.checkpoint.tensor(name)
        self.put(f"{ours}.weight", weight.float() * scale if scale != 1 else weight, name)
        if bias in self.checkpoint:
            self.put(f"{ours}.bias", self.checkpoint.tensor(bias).float() * scale, bias)
        else:
            self.put(f"{ours}.bias", torch.zeros(len(weight)), name)

    def norm(self, ours: str, theirs: str) -> None:
        """Read a norm; one by RMS has no bias."""
        for part in ("weight", "bias"):
            if part == "weight" or f"{theirs}.bias" in self.checkpoint:
                self.copy(f"{ours}.{part}", f"{theirs}.{part}")

    def matrices(self, names: Mapping[str, str]) -> Tied:
        """Read the embeddings and the output projection under `names`. The output bias is zero.
        Return which of them have equal values and so become one matrix."""
        stored = {*names.values()}
        # the numbers of several say which are equal, even where only shapes are read
        read_one = self.checkpoint.numbers if len(stored) > 1 else self.checkpoint.tensor
        read = {theirs: read_one(theirs) for theirs in stored}
        held = {ours: read[theirs] for ours, theirs in names.items()}
        one_embedding = same(held[SOURCE_WEIGHT], held[TARGET_WEIGHT])
        one_output = same(held[OUTPUT_WEIGHT], held[TARGET_WEIGHT])
        self.put(SOURCE_WEIGHT, held[SOURCE_WEIGHT], names[SOURCE_WEIGHT])
        if not one_embedding:
            self.put(TARGET_WEIGHT, held[TARGET_WEIGHT], names[TARGET_WEIGHT])
        if not one_output:
            self.put(OUTPUT_WEIGHT, held[OUTPUT_WEIGHT], names[OUTPUT_WEIGHT])
        self.put("generator.bias", torch.zeros(len(held[OUTPUT_WEIGHT])), names[OUTPUT_WEIGHT])
        return TIED[one_embedding, one_output]

    def build(self, config: TransformerConfig, advice: str = ADVICE) -> Transformer:
        """Return the network with these tensors, which it shares; if only their shapes were read,
        it has no numbers.

        Raise InputError if a tensor is missing or has a shape that `config` does not describe, or
        if the checkpoint has tensors that nobody read: then with `advice`.
        """
        folder = self.checkpoint.folder
        with torch.device("meta"):
            model = Transformer(config)
        for name, expected in model.state_dict().items():
            found = self.state.get(name)
            if found is None:
                raise InputError(
                    f"{folder} has no tensor for {name} (Heed's name of it): the checkpoint is"
                    " incomplete, so download its weights again, or"
                    f" {self.checkpoint.config_name} belongs to another model"
                )
            if found.shape != expected.shape:
                raise InputError(
                    f"{folder}: tensor {self.origins[name]} has shape {tuple(found.shape)} and"
                    f" {self.checkpoint.config_name} describes {tuple(expected.shape)}"
                )
        if unread := self.checkpoint.unread:
            tensors = f"{len(unread)} tensor{'s' * (len(unread) > 1)}"
            raise InputError(
                f"{folder} has {tensors} that a model of this kind does not have:"
                f" {shortened(unread)}; {advice}"
            )
        model.load_state_dict(self.state, assign=True)
        return model.eval()


def same(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.shape == other.shape and torch.equal(one, other))
