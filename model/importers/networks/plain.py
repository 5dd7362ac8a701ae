"""Read models of your own: torch.nn.Transformer inside a module, or The Annotated Transformer."""

import re

from model.importers.checkpoint import OWN, Checkpoint
from model.importers.description import SINUSOIDAL, SQRT, Description, read_description
from model.importers.files.names import grouped, matches, rename, shortened
from model.importers.networks.layers import NAMES, Layers
from model.importers.networks.state import StateReader
from model.network.config import Activation, InputError, Positions, Tied, TransformerConfig
from model.network.positions import sinusoidal_positions
from model.network.transformer import Transformer
from model.network.tying import OUTPUT_WEIGHT, SOURCE_WEIGHT, TARGET_WEIGHT

SIDES = ("encoder", "decoder")
NUMBER = re.compile(r"\.\d+\.")  # in the name of a tensor of a layer


def read_plain(checkpoint: Checkpoint) -> Transformer:
    """Return the network. Raise InputError if heed.toml and the tensors do not fit each other."""
    description = read_description(checkpoint)
    check_names(checkpoint, description)
    reader = StateReader(checkpoint)
    tied = read_matrices(reader, description)
    layers = read_layers(reader, description)
    d_model = reader.state[SOURCE_WEIGHT].size(-1)
    lengths = description.max_source_length, description.max_target_length
    tables = {name: checkpoint.tensor(name) for name in {*description.positions} - {SINUSOIDAL}}
    for side, name, length in zip(SIDES, description.positions, lengths, strict=True):
        if name in tables:
            check_positions(checkpoint, name, length, d_model)
            table = tables[name].reshape(-1, d_model)[:length]
        else:
            table = sinusoidal_positions(length, d_model)
        reader.put(f"{side}.embedding.positions", table, name)
    checkpoint.ignore(*ignored(checkpoint, description))
    check_complete(layers, description)
    return reader.build(read_config(layers, description, tied))


def read_layers(reader: StateReader, description: Description) -> Layers:
    """Read both stacks, and the norms after them if there are any."""
    checkpoint, start = reader.checkpoint, description.transformer
    others = {*description.tensors(), *ignored(checkpoint, description)}
    names = [name for name in checkpoint.names if name not in others]
    try:
        stored = rename(names, description.names, start)
    except InputError as error:
        raise InputError(f"{description.path}: {error}") from error
    layers = Layers(reader, NAMES[description.kind], stored, description.num_heads)
    final_norm = has_final_norm(layers, description)
    for side in SIDES:
        numbers = layers.numbers(f"{start}{side}.layers.")
        if not numbers:
            raise InputError(f"{description.path}: {describe_stack(layers, description, side)}")
        for i, number in enumerate(numbers):
            layers.read(f"{side}.layers.{i}", f"{start}{side}.layers.{number}")
        if final_norm:
            layers.norm(f"{side}.norm", f"{start}{side}.norm")
    return layers


def has_final_norm(layers: Layers, description: Description) -> bool:
    return f"{description.transformer}encoder.norm.{layers.names.weight}" in layers.stored


def describe_stack(layers: Layers, description: Description, side: str) -> str:
    """Say how to name the layers of a stack that has none of the expected names."""
    marker, start = "encoder.layers.0.", description.transformer
    starts = {name.partition(marker)[0] for name in layers.stored if marker in name}
    said = f"transformer is {start!r}, but no tensor's name begins with {start}{side}.layers.0."
    if starts - {start}:
        return f"{said}; give {' or '.join(map(repr, sorted(starts)))}"
    others = grouped(layers.stored.values())
    return f"{said}; map these to names of torch.nn.Transformer under [names]: {others}"


def check_complete(layers: Layers, description: Description) -> None:
    """Raise InputError naming all tensors that are missing, and all that nothing reads."""
    unread = layers.reader.checkpoint.unread
    faults: list[str] = []
    if layers.missing:
        faults.append(f"have no {grouped(layers.missing)}")
    if unread:
        faults.append(f"have {grouped(unread)}, which nothing reads")
    if faults:
        raise InputError(
            f"{description.path} does not fit the weights, which {', and '.join(faults)}: map names"
            " to those of the kind under [names], and list tensors that the model does not need in"
            " ignore"
        )


def ignored(checkpoint: Checkpoint, description: Description) -> list[str]:
    return [
        name
        for name in checkpoint.names
        if any(matches(pattern, name) is not None for pattern in description.ignore)
    ]


def check_names(checkpoint: Checkpoint, description: Description) -> None:
    """Raise InputError naming the first key of heed.toml whose tensor the weights lack."""
    named = {
        "source_embedding": [description.source_embedding],
        "target_embedding": [description.target_embedding],
        "output": [description.output],
        "positions": [name for name in description.positions if name != SINUSOIDAL],
        "ignore": description.ignore,
    }
    if "output_bias" in checkpoint.config:
        named["output_bias"] = [description.output_bias]
    for key, names in named.items():
        for name in names:
            if not any(matches(name, stored) is not None for stored in checkpoint.names):
                others = [other for other in checkpoint.names if not NUMBER.search(other)]
                raise InputError(
                    f"{description.path}: {key} is {name!r}, but the weights have no such tensor;"
                    f" outside of layers they have {shortened(others, most=12)}"
                )


def read_matrices(reader: StateReader, description: Description) -> Tied:
    """Read the embeddings and the output projection with its bias."""
    names = {
        SOURCE_WEIGHT: description.source_embedding,
        TARGET_WEIGHT: description.target_embedding,
        OUTPUT_WEIGHT: description.output,
    }
    for name in names.values():
        check_matrix(reader.checkpoint, name)
    tied = reader.matrices(names)
    if description.output_bias in reader.checkpoint:
        reader.copy("generator.bias", description.output_bias)
    return tied


def read_config(layers: Layers, description: Description, tied: Tied) -> TransformerConfig:
    state = layers.reader.state
    source_vocab_size, d_model = state[SOURCE_WEIGHT].shape
    check_ids(description, source_vocab_size)
    scale = description.embedding_scale
    computed = description.positions == (SINUSOIDAL, SINUSOIDAL)
    encoder, decoder = (
        sum(name.startswith(f"{side}.layers.") and name.endswith(".up.weight") for name in state)
        for side in SIDES
    )
    if d_model % max(1, description.num_heads):
        raise InputError(
            f"{description.path}: d_model {d_model} is not a multiple of num_heads"
            f" {description.num_heads}: give the number that the model was trained with"
        )
    try:
        return TransformerConfig(
            source_vocab_size=source_vocab_size,
            target_vocab_size=len(state["generator.bias"]),
            d_model=d_model,
            d_ff=len(state["encoder.layers.0.feed_forward.up.weight"]),
            num_heads=description.num_heads,
            num_encoder_layers=encoder,
            num_decoder_layers=decoder,
            norm=layers.names.norm,
            norm_epsilon=description.norm_epsilon,
            norm_first=description.norm_first,
            final_norm=has_final_norm(layers, description),
            embedding_scale=0.0 if scale == SQRT else float(scale),
            positions=Positions.sinusoidal if computed else Positions.learned,
            activation=Activation(description.activation),
            tied=tied,
            dropout=0.0,
            max_source_length=description.max_source_length,
            max_target_length=description.max_target_length,
            pad_id=description.pad_id,
            bos_id=description.start_id,
            eos_id=description.eos_id,
        )
    except InputError as error:
        raise InputError(f"{description.path}: {error}") from error


def check_ids(description: Description, rows: int) -> None:
    for key in ("source_prefix_ids", "source_suffix_ids"):
        ids: list[int] = getattr(description, key)
        if wrong := [i for i in ids if i >= rows]:
            raise InputError(
                f"{description.path}: {key} has {wrong[0]}, but the source has ids 0 to {rows - 1}"
            )


def check_matrix(checkpoint: Checkpoint, name: str) -> None:
    if len(shape := checkpoint.shape(name)) != 2:
        raise InputError(
            f"{checkpoint.folder}: tensor {name} has shape {shape}: it must be a matrix"
        )


def check_positions(checkpoint: Checkpoint, name: str, length: int, d_model: int) -> None:
    """Raise InputError unless a tensor has `length` rows of `d_model`: (rows, M), or with an axis
    for the batch (1, rows, M) or (rows, 1, M)."""
    shape = checkpoint.shape(name)
    rows = [size for size in shape[:-1] if size != 1] or [1]
    if not shape or len(rows) > 1 or shape[-1] != d_model or rows[0] < length:
        raise InputError(
            f"{checkpoint.folder}: the positions {name} have shape {shape}, but {OWN} describes at"
            f" least {length} rows of {d_model}: correct positions, max_source_length or"
            " max_target_length"
        )
