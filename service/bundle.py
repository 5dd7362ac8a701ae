"""Bundle validation: read a bundle from disk (docs/bundle.md) and check all of it first."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.errors import StartupError

GraphName = Literal["encoder", "step", "attention", "encoder_attention", "score"]
TokenId = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Config(BaseModel):
    """The network's configuration. The service reads these fields and only shows the others."""

    model_config = ConfigDict(frozen=True, extra="allow")

    source_vocab_size: Count
    target_vocab_size: Count
    d_model: Count
    d_ff: Count
    num_heads: Count
    d_qk: Count
    d_v: Count
    score_function: Literal["scaled_dot_product", "additive", "gaussian"]
    num_encoder_layers: Count
    num_decoder_layers: Count
    max_source_length: Count
    max_target_length: Count

    @property
    def step_weights(self) -> int:
        """Number of parameters that a decoding step reads, embeddings aside."""
        # Self-attention has four products, cross-attention two: its keys and values are cached.
        attention = 3 * self.num_heads * (self.d_qk + self.d_v)
        layer = self.d_model * (attention + 2 * self.d_ff)
        return self.num_decoder_layers * layer + self.d_model * self.target_vocab_size


class Limits(Part):
    """Longest source and target in positions. Every id that enters the encoder or the decoder
    counts, special ones included."""

    max_source_length: Count
    max_target_length: Count


class Decoding(Part):
    max_new_tokens: Count


class Tokenizers(Part):
    """File names. `compose`: before the normalizers, marks are composed with their letters."""

    source: str
    target: str
    compose: bool = False


class File(Part):
    size: int
    sha256: str


class Manifest(Part):
    """The contents of bundle.json; docs/bundle.md explains every key."""

    format_version: Literal[1]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    task: str
    licence: str
    attribution: str
    config: Config
    limits: Limits
    decoding: Decoding
    pad_id: TokenId
    eos_id: TokenId
    unknown_id: TokenId | None
    source_prefix_ids: list[TokenId]
    source_suffix_ids: list[TokenId]
    decoder_start_ids: Annotated[list[TokenId], Field(min_length=1)]
    tokenizers: Tokenizers
    precisions: Annotated[dict[str, dict[GraphName, str]], Field(min_length=1)]
    files: dict[str, File]


@dataclass(frozen=True, slots=True)
class Bundle:
    root: Path
    manifest: Manifest

    def path(self, name: str) -> Path:
        return self.root / name


def load_bundle(root: Path) -> Bundle:
    """Return the bundle in `root` once its manifest and all its files are validated.

    Raises StartupError naming what is missing, altered, outside the folder or contradictory.
    """
    path = root / "bundle.json"
    if not path.is_file():
        raise StartupError(
            f"{root} is not a bundle: it has no bundle.json; write one with"
            " `python -m model export`"
        )
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise StartupError.of(str(path), error) from error
    bundle = Bundle(root, manifest)
    for name, file in manifest.files.items():
        check_file(root, name, file)
    needed = ["parity.npz", manifest.tokenizers.source, manifest.tokenizers.target]
    for precision, graphs in manifest.precisions.items():
        if missing := {"encoder", "step"} - graphs.keys():
            raise StartupError(
                f"{path}: precision {precision} lacks the graphs {', '.join(sorted(missing))},"
                " which every precision needs: export the bundle again"
            )
        needed += graphs.values()
        for folder in {bundle.path(name).parent for name in graphs.values()}:
            needed += [path.relative_to(root).as_posix() for path in folder.iterdir()]
    if unlisted := [name for name in needed if name not in manifest.files]:
        raise StartupError(f'{path}: these files have no entry in "files": {", ".join(unlisted)}')
    check_numbers(manifest, path)
    return bundle


def check_file(root: Path, name: str, file: File) -> None:
    """Raise StartupError unless the file lies in the bundle with this size and SHA-256."""
    path = root / name
    if not path.resolve().is_relative_to(root.resolve()):
        raise StartupError(f"{root}: {name} lies outside the bundle")
    if not path.is_file():
        raise StartupError(f"{root}: {name} is missing: copy or export the bundle again")
    if path.stat().st_size != file.size:
        raise StartupError(
            f"{path} has {path.stat().st_size} bytes, but bundle.json says {file.size}:"
            " copy or export the bundle again"
        )
    with path.open("rb") as content:
        if hashlib.file_digest(content, "sha256").hexdigest() != file.sha256:
            raise StartupError(
                f"{path} is not the file that was exported: its SHA-256 differs from bundle.json;"
                " copy or export the bundle again"
            )


def check_numbers(manifest: Manifest, path: Path) -> None:
    """Raise StartupError if ids exceed their vocabulary, or limits the network's positions."""
    source, target = manifest.config.source_vocab_size, manifest.config.target_vocab_size
    shared = [manifest.pad_id, manifest.unknown_id or 0]
    sides = (
        ("source", source, [*shared, *manifest.source_prefix_ids, *manifest.source_suffix_ids]),
        ("target", target, [*shared, manifest.eos_id, *manifest.decoder_start_ids]),
    )
    for side, size, ids in sides:
        if max(ids) >= size:
            raise StartupError(
                f"{path}: id {max(ids)} is outside the {side} vocabulary of {size} tokens"
            )
    config, limits = manifest.config, manifest.limits
    for name, limit, positions in (
        ("max_source_length", limits.max_source_length, config.max_source_length),
        ("max_target_length", limits.max_target_length, config.max_target_length),
    ):
        if limit > positions:
            raise StartupError(
                f"{path}: {name} in limits is {limit} and the network has {positions} positions:"
                f" lower the limit to at most {positions}"
            )
    starts, limit = len(manifest.decoder_start_ids), manifest.limits.max_target_length
    if manifest.decoding.max_new_tokens + starts - 1 > limit:
        raise StartupError(
            f"{path}: max_new_tokens {manifest.decoding.max_new_tokens} and {starts} start ids"
            f" exceed max_target_length {limit}: lower max_new_tokens to at most"
            f" {limit + 1 - starts}"
        )
