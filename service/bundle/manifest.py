"""Bundle validation: read a bundle from disk (docs/bundle.md) and check all of it first."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.bundle.alignment import AlignedHeads, check_heads
from service.bundle.decoding import Count, Decoding
from service.bundle.examples import Example, check_examples
from service.bundle.files import (
    LARGEST_MANIFEST,
    check_file,
    check_in_files,
    check_size,
    check_weights,
    describe_missing,
    hash_file,
    read_card,
)
from service.bundle.languages import (
    Languages,
    Slot,
    StartItem,
    Template,
    TemplateItem,
    TokenId,
    fill,
    slots_of,
)
from service.errors import StartupError, shorten

GraphName = Literal[
    "encoder",
    "step",
    "draft_step",
    "attention",
    "encoder_attention",
    "score",
    "gated_encoder",
    "gated_step",
    "gated_decoder",
    "shortlisted_step",
    "output_rows",
    "hidden_step",
    "output",
]
DecoderAttention = Literal["decoder", "cross"]
Layers = Annotated[int, Field(ge=1, le=1000)]
PrecisionName = Annotated[str, Field(pattern=r"^(fp32|int8|fp16)$")]
FileName = Annotated[str, Field(max_length=255, pattern=r"^[^\x00-\x1f\x7f]+$")]

FORMAT_VERSION = 3
SHORTLISTED: set[GraphName] = {"shortlisted_step", "output_rows"}  # used together, or not at all


class ManifestPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Config(BaseModel):
    """The network's configuration. The service reads these fields and only shows the others.

    `self_parts` and `cross_parts` are what a cache holds for a decoder layer: names, and heads and
    head_dim at each position. An SSRU has one state instead of keys and values of all positions.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    source_vocab_size: Count
    target_vocab_size: Count
    d_model: Count
    d_ff: Count
    num_heads: Count
    d_qk: Count
    d_v: Count
    score_function: Literal["scaled_dot_product", "additive", "gaussian"]
    num_encoder_layers: Layers
    num_decoder_layers: Layers
    decoder: Literal["self_attention", "ssru"] = "self_attention"  # if missing
    max_source_length: Count
    max_target_length: Count

    @property
    def recurrent(self) -> bool:
        return self.decoder == "ssru"

    @cached_property
    def decoder_kinds(self) -> list[DecoderAttention]:
        """Kinds of attention in the decoder, in the order of their gates."""
        return ["cross"] if self.recurrent else ["decoder", "cross"]

    @property
    def self_parts(self) -> dict[str, tuple[int, int]]:
        return {"state": (1, self.d_model)} if self.recurrent else self.cross_parts

    @property
    def cross_parts(self) -> dict[str, tuple[int, int]]:
        return {"key": (self.num_heads, self.d_qk), "value": (self.num_heads, self.d_v)}

    @property
    def step_weights(self) -> int:
        """Number of parameters that a decoding step reads, embeddings aside."""
        # An SSRU has two products, self-attention four; cross-attention two, since its keys and
        # values are cached.
        attention = self.num_heads * (self.d_qk + self.d_v)
        target = 2 * self.d_model if self.recurrent else 2 * attention
        layer = self.d_model * (target + attention + 2 * self.d_ff)
        return self.num_decoder_layers * layer + self.d_model * self.target_vocab_size


class Limits(ManifestPart):
    """Longest source and target in positions. Every id that enters the encoder or the decoder
    counts, special ones included."""

    max_source_length: Count
    max_target_length: Count


class Tokenizers(ManifestPart):
    """File names. `compose`: before the normalizers, marks are composed with their letters."""

    source: FileName
    target: FileName
    compose: bool


class TargetLists(ManifestPart):
    """The file with the tokens of each language's list and, for each precision, the graphs that
    score them, by language code."""

    tokens: FileName
    graphs: Annotated[dict[PrecisionName, dict[str, FileName]], Field(min_length=1)]


class File(ManifestPart):
    size: Annotated[int, Field(ge=0)]
    sha256: str


class Format(BaseModel):
    """The key that tells the format of a bundle.json, whatever its other keys are."""

    format_version: int


class Manifest(ManifestPart):
    """The contents of bundle.json; docs/bundle.md explains every key."""

    format_version: Literal[3]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    task: str = ""
    licence: str = ""
    attribution: str = ""
    examples: Annotated[list[Example], Field(max_length=10)] = []
    config: Config
    limits: Limits
    decoding: Decoding
    pad_id: TokenId
    eos_id: TokenId
    other_eos_ids: Annotated[list[TokenId], Field(max_length=16)] = []  # end targets as eos_id does
    unknown_id: TokenId | None
    source_prefix: list[TemplateItem]
    source_suffix: list[TemplateItem]
    decoder_start: Annotated[list[StartItem], Field(min_length=1)]
    languages: Languages
    tokenizers: Tokenizers
    shortlists: FileName | None = None
    target_lists: TargetLists | None = None
    precisions: Annotated[dict[PrecisionName, dict[GraphName, FileName]], Field(min_length=1)]
    origin: dict[str, Any]
    alignment: AlignedHeads | None = None  # null: looked for, and there is none
    files: Annotated[dict[FileName, File], Field(max_length=1000)]

    @cached_property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end a target, without duplicates; eos_id comes first."""
        return tuple(dict.fromkeys([self.eos_id, *self.other_eos_ids]))

    def start_ids(self, language: Sequence[int] = ()) -> list[int]:
        """Return the ids before a target; `language` has those that its language adds."""
        return fill(self.decoder_start, {"target_language": language})

    @cached_property
    def target_positions(self) -> int:
        """Longest target in tokens. Every start id but one also takes a position."""
        longest = max(self.languages.target.values(), key=len, default=())
        return self.limits.max_target_length + 1 - len(self.start_ids(longest))


@dataclass(frozen=True, slots=True)
class Bundle:
    """`version` is the SHA-256 of bundle.json, `card` the text of MODEL_CARD.md."""

    root: Path
    manifest: Manifest
    version: str
    card: str

    def path(self, name: str) -> Path:
        return self.root / name


def load_bundle(root: Path) -> Bundle:
    """Return the bundle in `root` after validating its manifest and all its files.

    Raise StartupError naming what is missing, altered, outside the folder or contradictory.
    """
    path = root / "bundle.json"
    try:
        if not path.is_file():
            raise StartupError(describe_missing(root))
        manifest = read_manifest(path)
        check_numbers(manifest, path)
        for name, file in manifest.files.items():
            check_file(root, name, file.size, file.sha256)
        check_listed(root, manifest)
        for name in manifest.files:
            if name.endswith(".safetensors"):
                check_weights(root / name, manifest.config.model_dump())
        return Bundle(root, manifest, hash_file(path), read_card(root, manifest.files))
    except (OSError, RuntimeError) as error:  # RuntimeError: links that form a circle
        raise StartupError(f"{root} cannot be read: {error}") from error


def check_listed(root: Path, manifest: Manifest) -> None:
    """Raise StartupError if a file that may be read has no entry in `files`."""
    path = root / "bundle.json"
    needed = ["parity.npz", manifest.tokenizers.source, manifest.tokenizers.target]
    needed += [manifest.shortlists] if manifest.shortlists else []
    listed: list[str] = []
    if lists := manifest.target_lists:
        check_target_lists(manifest, lists, path)
        listed = [name for each in lists.graphs.values() for name in each.values()]
        needed += [lists.tokens, *listed]
    for precision, graphs in manifest.precisions.items():
        if missing := {"encoder", "step"} - graphs.keys():
            raise StartupError(
                f"{path}: precision {precision} lacks the graphs {', '.join(sorted(missing))},"
                " which every precision needs: export the bundle again"
            )
        needed += graphs.values()
    check_in_files(path, manifest.files, needed)
    graphs = [name for each in manifest.precisions.values() for name in each.values()]
    folders = {(root / name).parent for name in (*graphs, *listed)}
    there = [each for folder in folders for each in folder.iterdir()]
    names = [each.relative_to(root).as_posix() for each in there]
    check_in_files(path, manifest.files, names)


def check_target_lists(manifest: Manifest, lists: TargetLists, path: Path) -> None:
    """Raise StartupError if lists are of languages or precisions that the model lacks, or if
    it has shortlists, too."""
    if manifest.shortlists:
        raise StartupError(f"{path} has shortlists and target_lists: remove one of them")
    with_ids = {code for code, ids in manifest.languages.target.items() if ids}
    for precision, graphs in lists.graphs.items():
        if missing := {"hidden_step", "output"} - manifest.precisions.get(precision, {}).keys():
            raise StartupError(
                f"{path}: target_lists has graphs of {precision}, which lacks"
                f" {', '.join(sorted(missing))}: convert the model again"
            )
        if unknown := graphs.keys() - with_ids:
            raise StartupError(
                f"{path}: target_lists names {shorten(min(unknown))}, which is not a language of"
                " targets with ids: convert the model again"
            )


def read_manifest(path: Path) -> Manifest:
    """Return the contents of bundle.json. Raise StartupError if it breaks a rule of its keys, or
    has another format."""
    check_size(path, LARGEST_MANIFEST)
    content = path.read_bytes()
    try:
        version = Format.model_validate_json(content).format_version
        if version != FORMAT_VERSION:
            way_out = (
                "export it again with `heed export RUN BUNDLE`, or convert its checkpoint again"
            )
            if version > FORMAT_VERSION:
                way_out = "install a later version of Heed"
            raise StartupError(
                f"{path} has format {shorten(str(version))}; this Heed reads format"
                f" {FORMAT_VERSION}: {way_out}"
            )
        return Manifest.model_validate_json(content)
    except ValidationError as error:
        raise StartupError.of(str(path), error) from error


def check_numbers(manifest: Manifest, path: Path) -> None:
    """Raise StartupError if ids, limits or decoding options contradict the model."""
    slots = check_slots(manifest, path)
    check_examples(manifest.examples, manifest.languages, slots, path)
    check_ids(manifest, path)
    check_limits(manifest, path)
    check_decoding(manifest, path)
    if manifest.alignment:
        config = manifest.config
        check_heads(manifest.alignment, config.num_decoder_layers, config.num_heads, path)


def check_slots(manifest: Manifest, path: Path) -> set[Slot]:
    """Return the slots of all templates. Raise StartupError if no language can fill one."""
    used: set[Slot] = set()
    for name in ("source_prefix", "source_suffix", "decoder_start"):
        template: Template = getattr(manifest, name)
        for slot in slots_of(template):
            codes, side = manifest.languages.of(slot), slot.removesuffix("_language")
            if not codes:
                raise StartupError(
                    f"{path}: {name} has the slot {slot}, but languages has no code of the {side}:"
                    " add the codes, or remove the slot"
                )
            if empty := [code for code, ids in codes.items() if not ids]:
                raise StartupError(
                    f"{path}: {name} has the slot {slot}, but languages.{side}.{empty[0]} has no"
                    " ids: add at least one, or remove the slot"
                )
            used.add(slot)
    return used


def check_ids(manifest: Manifest, path: Path) -> None:
    source, target = manifest.config.source_vocab_size, manifest.config.target_vocab_size
    shared = [manifest.pad_id, manifest.unknown_id or 0]
    languages, suppressed = manifest.languages, manifest.decoding.suppressed
    around = languages.every_id([*manifest.source_prefix, *manifest.source_suffix])
    start = languages.every_id(manifest.decoder_start)
    sides = (
        ("source", source, [*shared, *around]),
        (
            "target",
            target,
            [*shared, *manifest.eos_ids, *start, *suppressed.ids, *chain(*suppressed.sequences)],
        ),
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
    around: Template = [*manifest.source_prefix, *manifest.source_suffix]
    longest = manifest.languages.most_ids(around)
    if longest >= limits.max_source_length:
        raise StartupError(
            f"{path}: source_prefix and source_suffix take {longest} of the"
            f" {limits.max_source_length} positions of max_source_length, which leaves no room for"
            " a text: shorten them or raise the limit"
        )
    if manifest.target_positions < 1:
        raise StartupError(
            f"{path}: decoder_start takes all {limits.max_target_length} positions of"
            " max_target_length, which leaves no room for a target: shorten it or raise the limit"
        )


def check_decoding(manifest: Manifest, path: Path) -> None:
    decoding, longest = manifest.decoding, manifest.target_positions
    config = manifest.config
    for name, harmless in (("encoder_no_repeat_ngram_size", 0), ("encoder_repetition_penalty", 1)):
        value = getattr(decoding, name)
        if value != harmless and config.source_vocab_size != config.target_vocab_size:
            raise StartupError(
                f"{path}: {name} {value} compares targets with sources, which here have other"
                f" vocabularies: set it to {harmless}"
            )
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
