"""Bundle validation: read a bundle from disk (docs/bundle.md) and check all of it first."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.errors import StartupError
from service.languages import Item, Languages, StartItem, Template, TokenId, fill, slots_of

GraphName = Literal["encoder", "step", "attention", "encoder_attention", "score"]
Count = Annotated[int, Field(ge=1)]

FORMAT_VERSION = 2
NAMED = 10  # bundles that an error names

# Ranges of search options, in bundles and in requests
LeastTokens = Annotated[int, Field(ge=0)]
BeamSize = Annotated[int, Field(ge=1, le=64)]
LengthPenalty = Annotated[float, Field(ge=-10, le=10, allow_inf_nan=False)]
NgramSize = Annotated[int, Field(ge=0, le=64)]
RepetitionPenalty = Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)]


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
    """Search options that requests inherit. `suppress_tokens` are added to those of a request;
    `renormalize` cannot be requested."""

    max_new_tokens: Count
    min_new_tokens: LeastTokens
    beam_size: BeamSize
    length_penalty: LengthPenalty
    early_stopping: bool
    no_repeat_ngram_size: NgramSize
    repetition_penalty: RepetitionPenalty
    suppress_tokens: Annotated[list[TokenId], Field(max_length=1 << 16)]
    renormalize: bool = False  # bundles may lack it


class Tokenizers(Part):
    """File names. `compose`: before the normalizers, marks are composed with their letters."""

    source: str
    target: str
    compose: bool


class File(Part):
    size: int
    sha256: str


class Format(BaseModel):
    """The key that tells the format of a bundle.json, whatever its other keys are."""

    format_version: int


class Manifest(Part):
    """The contents of bundle.json; docs/bundle.md explains every key."""

    format_version: Literal[2]
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
    source_prefix: list[Item]
    source_suffix: list[Item]
    decoder_start: Annotated[list[StartItem], Field(min_length=1)]
    languages: Languages
    tokenizers: Tokenizers
    precisions: Annotated[dict[str, dict[GraphName, str]], Field(min_length=1)]
    origin: dict[str, Any]
    files: dict[str, File]

    def start_ids(self, language: Sequence[int] = ()) -> list[int]:
        """Return what the decoder reads before a target in the language of these ids."""
        return fill(self.decoder_start, {"target_language": language})

    @property
    def target_positions(self) -> int:
        """Most tokens of a target in any language: all but one start id take positions too."""
        longest = max(self.languages.target.values(), key=len, default=())
        return self.limits.max_target_length + 1 - len(self.start_ids(longest))


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
        raise StartupError(describe_missing(root))
    manifest = read_manifest(path)
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


def describe_missing(root: Path) -> str:
    """Return why `root` is not a bundle, and name the bundles in it."""
    if not root.exists():
        return f"{root} does not exist: give the folder of a bundle"
    if not root.is_dir():
        return f"{root} is a file: give the folder of a bundle"
    inside = sorted(str(path.parent) for path in root.glob("*/bundle.json"))
    if inside:
        found = ", ".join(inside[:NAMED]) + ("…" if len(inside) > NAMED else "")
        return f"{root} is not a bundle, but holds some: give one or several of {found}"
    return (
        f"{root} is not a bundle: it has no bundle.json; write one with"
        " `python -m model export`, or `convert` for a checkpoint of another library"
    )


def read_manifest(path: Path) -> Manifest:
    """Return the contents of bundle.json. Raise StartupError if it breaks a rule of its keys, or
    has another format."""
    content = path.read_bytes()
    try:
        version = Format.model_validate_json(content).format_version
        if version != FORMAT_VERSION:
            raise StartupError(
                f"{path} has format {version}; this Heed reads format {FORMAT_VERSION}: export it"
                " again with `python -m model export RUN BUNDLE`"
            )
        return Manifest.model_validate_json(content)
    except ValidationError as error:
        raise StartupError.of(str(path), error) from error


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
    """Raise StartupError if ids, limits or decoding options contradict the model."""
    check_slots(manifest, path)
    check_ids(manifest, path)
    check_limits(manifest, path)
    check_decoding(manifest, path)


def check_slots(manifest: Manifest, path: Path) -> None:
    for name in ("source_prefix", "source_suffix", "decoder_start"):
        template: Template = getattr(manifest, name)
        for slot in slots_of(template):
            if not manifest.languages.of(slot):
                side = slot.removesuffix("_language")
                raise StartupError(
                    f"{path}: {name} has the slot {slot}, but languages has no code of the {side}:"
                    " add the codes, or remove the slot"
                )


def check_ids(manifest: Manifest, path: Path) -> None:
    source, target = manifest.config.source_vocab_size, manifest.config.target_vocab_size
    shared = [manifest.pad_id, manifest.unknown_id or 0]
    languages, suppressed = manifest.languages, manifest.decoding.suppress_tokens
    around = languages.every_id([*manifest.source_prefix, *manifest.source_suffix])
    start = languages.every_id(manifest.decoder_start)
    sides = (
        ("source", source, [*shared, *around]),
        ("target", target, [*shared, manifest.eos_id, *start, *suppressed]),
    )
    for side, size, ids in sides:
        if max(ids) >= size:
            raise StartupError(
                f"{path}: id {max(ids)} is outside the {side} vocabulary of {size} tokens"
            )


def check_limits(manifest: Manifest, path: Path) -> None:
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


def check_decoding(manifest: Manifest, path: Path) -> None:
    decoding, longest = manifest.decoding, manifest.target_positions
    if decoding.max_new_tokens > longest:
        limit = manifest.limits.max_target_length
        raise StartupError(
            f"{path}: max_new_tokens {decoding.max_new_tokens} and {limit + 1 - longest} start ids"
            f" exceed max_target_length {limit}: lower max_new_tokens to at most {longest}"
        )
    if decoding.min_new_tokens > decoding.max_new_tokens:
        raise StartupError(
            f"{path}: min_new_tokens {decoding.min_new_tokens} exceeds max_new_tokens"
            f" {decoding.max_new_tokens}: lower min_new_tokens"
        )
