"""Convert a checkpoint to a bundle, and prove that nothing was lost on the way."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from model.checkpoint import TrainedModel
from model.export.bundle import Progress, check_target, write_bundle
from model.export.checks.answers import answer
from model.export.checks.samples import IdArray, IdPairs, decode
from model.export.files.manifest import Card, Precision, check_examples
from model.export.files.weights import WeightType, fp32_products, release_weights
from model.importers.card import hash_files, write_card
from model.importers.checkpoint import GENERATION, OWN, Checkpoint
from model.importers.description import read_description
from model.importers.fields import number
from model.importers.folders import check_folder, name_of
from model.importers.networks import marian, t5
from model.importers.networks.bart import read_bart
from model.importers.networks.kinds import check_config
from model.importers.networks.marian import read_marian
from model.importers.networks.plain import read_plain
from model.importers.networks.state import BANNED
from model.importers.networks.t5 import read_t5
from model.importers.proofs.expected import Expected, prove_expected
from model.importers.proofs.hugging_face import ask_hugging_face
from model.importers.proofs.networks import (
    INT8,
    ROUNDED,
    prove_graphs,
    prove_network,
    versions,
)
from model.importers.proofs.proof import LEFT_OUT, Proof, as_text
from model.importers.proofs.shortlists import count_listed
from model.importers.proofs.texts import Reader, Texts, read_texts
from model.importers.proofs.tokenizers import prove_ends, prove_pieces
from model.importers.proofs.versions import describe_differences
from model.importers.readme import find_licence
from model.importers.target_lists import (
    Targets,
    check_size,
    check_targets,
    list_tokens,
    prove_list,
)
from model.importers.tokenizers import byt5
from model.importers.tokenizers.kinds import SMALL_100, is_bytes, kind_of
from model.importers.tokenizers.marian import read_marian_vocabularies
from model.importers.usage.decoding import Generation
from model.importers.usage.usage import read_usage
from model.importers.vocabularies import Vocabularies, read_vocabularies
from model.network.config import InputError, TransformerConfig
from model.network.transformer import Transformer
from model.usage import Usage

SMALL_100_LAYERS = (12, 3)  # of encoder and decoder
PROVED = 32  # texts that the graphs are compared on
PACKAGES = ("torch", "transformers", "tokenizers", "sentencepiece", "onnx", "onnxruntime")


class FailedProof(Exception):
    """A proof does not hold, so no bundle was written. The message is a table of all proofs.

    `failed` names the proofs. `only_rounded` names int8 and fp16 if only the proofs of their graphs
    failed; else it is empty.
    """

    def __init__(self, proofs: Sequence[Proof]) -> None:
        super().__init__(as_text(proofs))
        self.failed = [proof.name for proof in proofs if proof.holds is False]
        rounded = [ROUNDED[name] for name in self.failed if name in ROUNDED]
        self.only_rounded = rounded if len(rounded) == len(self.failed) else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    name: str
    licence: str  # "": as README.md says
    examples: Sequence[str]
    max_length: int | None  # longest text of a network without a position table; None: t5.LONGEST
    precision: Precision
    weights: WeightType | None  # None: as the checkpoint stores them
    texts: Path | None = None  # None: built-in sentences
    expected: Expected | None = None
    targets: Targets = field(default_factory=dict[str, Path | None])  # languages to list tokens of


@dataclass(frozen=True, slots=True)
class Plan:
    """What a checkpoint says before its numbers are read."""

    checkpoint: Checkpoint  # closed
    licence: str
    config: TransformerConfig
    weights: int  # how many
    vocabularies: Vocabularies
    usage: Usage


def convert(folder: Path, bundle: Path, options: Options, progress: Progress) -> list[Proof]:
    """Write the bundle of a checkpoint, and return its proofs. `progress` is called with the name
    of each stage as it starts.

    One network is in memory at a time: Hugging Face's, then ours, then that of ONNX Runtime. So
    names and shapes are read first, which show what does not fit, and the numbers once, later.
    Raise InputError naming what is missing, damaged or not expressed by our network, and
    FailedProof if the converted model does not give the original's numbers.
    """
    check_target(bundle, options.name)
    plan = read_plan(folder, options, progress)
    checkpoint, vocabularies = plan.checkpoint, plan.vocabularies
    progress("comparing the tokenizers with the checkpoint's own")
    proofs = prove_pieces(vocabularies)
    proofs.append(prove_ends(checkpoint, vocabularies, plan.usage))
    reader = Reader(vocabularies.source, plan.usage, plan.config, plan.weights)
    texts = read_texts(reader, plan.usage, options.texts or own_texts(checkpoint))
    proofs.append(texts.proof())
    model, proof = read_proved(plan, texts, options, progress)
    proofs.append(proof)
    raise_failed(proofs)
    usage = ban_words(checkpoint, model, plan.usage)
    if options.expected is not None:
        progress("decoding the texts of the expected answers")
        target = vocabularies.target.tokenizer
        proofs.append(prove_expected(model, reader, target, texts.start, options.expected))
        raise_failed(proofs)
    progress("decoding texts, for int8 and the proofs of the graphs")
    pairs = decode(model, texts.sources, texts.start, texts.longest)
    measured, proved = halves(pairs)
    if usage.shortlists is not None:
        proofs.append(count_listed(usage.shortlists, pairs, len(texts.start)))
    lists, held_out = make_lists(model, replace(plan, usage=usage), options, progress)
    proofs += held_out
    raise_failed(proofs)
    check_size(lists)
    usage = replace(usage, target_lists=lists)
    packages, hashes = versions(*PACKAGES), hash_files(folder)
    trained = TrainedModel(
        model, vocabularies.source.tokenizer, vocabularies.target.tokenizer, usage, measured
    )

    def card(proofs: Sequence[Proof]) -> Card:
        card = write_card(checkpoint, options.name, plan.licence, proofs, packages, usage, hashes)
        return replace(card, examples=options.examples)

    def prove(files: Path, int8: str) -> tuple[TrainedModel, Card]:
        progress("computing torch's answers for the graphs")
        answers = answer(model, proved)
        release_weights(model)  # they are written, and the graphs need memory for theirs
        proofs.extend(prove_graphs(files, model, answers, len(texts.start), int8, progress))
        if options.precision is Precision.auto:
            leave_out_int8(files, proofs)
        raise_failed(proofs)
        origin = describe_origin(checkpoint, proofs, packages, hashes)
        if (files / "int8").is_dir():
            origin["fp32_products"] = fp32_products(model, files / "int8")
        return replace(trained, usage=replace(usage, origin=origin)), card(proofs)

    stored = options.weights or stored_type(checkpoint)
    write_bundle(trained, card(proofs), stored, bundle, options.precision, prove, progress)
    return proofs


def read_plan(folder: Path, options: Options, progress: Progress) -> Plan:
    """Read all but the numbers of a checkpoint. Raise InputError for what does not fit."""
    check_examples(options.examples)
    check_folder(folder)
    licence = find_licence(folder, options.licence)
    progress("reading the checkpoint")
    checkpoint = Checkpoint(folder, rounding_of(options), shapes_only=True)
    model = read_model(checkpoint, options.max_length)
    config, weights = model.config, sum(each.numel() for each in model.parameters())
    del model  # it may hold the matrices that were compared
    vocabularies = read_vocabularies(checkpoint)
    check_sizes(checkpoint, vocabularies, config)
    usage = read_usage(checkpoint, vocabularies, config)
    for sentence in describe_differences(checkpoint):
        progress(f"note: {sentence}")
    if options.examples:
        check_example_languages(usage)
    check_targets(options.targets, usage, options.precision)
    checkpoint.close()
    return Plan(checkpoint, licence, config, weights, vocabularies, usage)


def read_proved(
    plan: Plan, texts: Texts, options: Options, progress: Progress
) -> tuple[Transformer, Proof]:
    """Return the network, compared with Hugging Face's, whose answers leave memory then."""
    folder = plan.checkpoint.folder
    theirs = ask_hugging_face(plan.checkpoint, texts, plan.config, progress)
    model = read_model(Checkpoint(folder, rounding_of(options)), options.max_length)
    if isinstance(theirs, Proof):
        return model, theirs
    return model, prove_network(model, theirs, len(texts.start))


def rounding_of(options: Options) -> torch.dtype | None:
    return options.weights.dtype if options.weights else None


def describe_origin(
    checkpoint: Checkpoint,
    proofs: Sequence[Proof],
    packages: Mapping[str, str],
    hashes: Mapping[str, str],
) -> dict[str, Any]:
    return {
        "checkpoint": name_of(checkpoint.folder),
        "kind": checkpoint.config.get("model_type") or checkpoint.config["kind"],
        "files": hashes,
        "proofs": [asdict(proof) for proof in proofs],
        "versions": packages,
    }


def own_texts(checkpoint: Checkpoint) -> Path | None:
    """Return the file of texts that heed.toml names."""
    name = read_description(checkpoint).texts if checkpoint.config_name == OWN else ""
    if name and not (checkpoint.folder / name).is_file():
        raise InputError(f"{checkpoint.folder} has no {name}, which {OWN} names as texts")
    return checkpoint.folder / name if name else None


def make_lists(
    model: Transformer, plan: Plan, options: Options, progress: Progress
) -> tuple[dict[str, IdArray], list[Proof]]:
    """Return the tokens of each language that the options name, and the proofs of these lists."""
    lists: dict[str, IdArray] = {}
    proofs: list[Proof] = []
    for code in options.targets:
        progress(f"decoding texts into {code}, for the list of its tokens")
        lists[code], proof = make_list(model, plan, options, code)
        proofs.append(proof)
    return lists, proofs


def make_list(model: Transformer, plan: Plan, options: Options, code: str) -> tuple[IdArray, Proof]:
    """Return the tokens, ascending, that targets in a language may have: those that `list_tokens`
    chooses, and all that the model writes of half the texts. The other half is the proof."""
    side, usage = plan.vocabularies.target, replace(plan.usage, default_target=code)
    reader = Reader(plan.vocabularies.source, usage, plan.config, plan.weights)
    texts = read_texts(reader, usage, options.texts)
    written, proved = halves(decode(model, texts.sources, texts.start, texts.longest))
    listed = list_tokens(side, plan.config, usage, options.targets, code)
    listed.update(*(target for _, target in written))
    proof = prove_list(code, listed, proved, len(texts.start), side)
    return np.array(sorted(listed), np.int64), proof


def halves(pairs: IdPairs) -> tuple[IdPairs, IdPairs]:
    """Return pairs to measure int8 on, and others to prove it on; a single pair serves both."""
    return pairs[::2], pairs[1::2][:PROVED] or pairs


def leave_out_int8(files: Path, proofs: list[Proof]) -> None:
    """Remove the int8 graphs unless their proof holds."""
    for i, proof in enumerate(proofs):
        if proof.name == INT8 and not proof.holds:
            proofs[i] = replace(proof, holds=None, otherwise=LEFT_OUT)
            shutil.rmtree(files / "int8")


def read_model(checkpoint: Checkpoint, max_length: int | None = None) -> Transformer:
    """Return the network of a checkpoint.

    Raise InputError if its kind is unknown, or if `max_length` is given and positions limit it.
    """
    if checkpoint.is_marian:
        eos_id = read_marian_vocabularies(checkpoint)[1].eos_id
        return read_marian(checkpoint, max_length or marian.LONGEST, eos_id)
    is_own = checkpoint.config_name == OWN
    if not is_own:
        check_kind(checkpoint)
    if not is_own and checkpoint.config["model_type"] in t5.KINDS:
        longest = byt5.LONGEST if is_bytes(checkpoint) else t5.LONGEST
        return read_t5(checkpoint, max_length or longest)
    if max_length is not None:
        raise InputError(
            "--max-length is for T5 and its kin, and for files of Marian, which have no limit, but"
            f" {checkpoint.folder} has"
            " a table of positions that limits its texts: leave --max-length out"
        )
    return read_plain(checkpoint) if is_own else read_bart(checkpoint)


def check_kind(checkpoint: Checkpoint) -> None:
    """Raise InputError if a checkpoint of Hugging Face's is of a kind that is not converted."""
    check_config(checkpoint.config, str(checkpoint.folder))
    if kind_of(checkpoint) == "m2m_100":
        check_m2m_100(checkpoint)


def check_m2m_100(checkpoint: Checkpoint) -> None:
    """Raise InputError if an M2M100 may be SMaLL-100, which nothing marks: its texts have other
    languages around them, so it would translate wrongly."""
    depths = tuple(number(checkpoint, f"{side}_layers", 12) for side in ("encoder", "decoder"))
    if depths == SMALL_100_LAYERS and Generation(checkpoint).forced_bos_id is None:
        raise InputError(
            f"{checkpoint.folder} has {depths[0]} and {depths[1]} layers, as SMaLL-100, whose"
            " sources begin with the language of the target, but nothing says that it is one: if it"
            f' is, give tokenizer_config.json "tokenizer_class": "{SMALL_100}"; if it is an M2M100,'
            f' give {GENERATION} "forced_bos_token_id", the id of a language of targets'
        )


def check_sizes(
    checkpoint: Checkpoint, vocabularies: Vocabularies, config: TransformerConfig
) -> None:
    """Raise InputError if a vocabulary has more tokens than the model has embeddings."""
    sides = (
        ("source", vocabularies.source, config.source_vocab_size),
        ("target", vocabularies.target, config.target_vocab_size),
    )
    for side, converted, rows in sides:
        if (size := converted.tokenizer.get_vocab_size()) > rows:
            raise InputError(
                f"{checkpoint.folder}: the {side} vocabulary has {size} tokens and the embedding"
                f" {rows} rows: the files belong to two models"
            )


def check_example_languages(usage: Usage) -> None:
    """Raise InputError if a request must name languages: --example gives a text alone."""
    if max(len(usage.source_languages), len(usage.target_languages)) > 1:
        raise InputError(
            "--example gives a text without its languages, and this model has several: convert"
            " without it, then write examples into bundle.json (docs/bundle.md)"
        )


def raise_failed(proofs: list[Proof]) -> None:
    if any(proof.holds is False for proof in proofs):
        raise FailedProof(proofs)


def ban_words(checkpoint: Checkpoint, model: Transformer, usage: Usage) -> Usage:
    """Ban tokens by the output's bias if the checkpoint renormalizes the other probabilities. The
    search then needs no rule for them, unless a penalty multiplies log-probs before."""
    if checkpoint.config_name == OWN or checkpoint.is_marian:
        return usage
    generation = Generation(checkpoint)
    penalties = ("repetition_penalty", "encoder_repetition_penalty")
    penalizes = any(usage.decoding.get(name, 1) != 1 for name in penalties)
    if not (generation.bad_ids and generation.renormalizes) or penalizes:
        return usage
    with torch.no_grad():
        model.generator.bias[generation.bad_ids] = BANNED
    banned = {*generation.bad_ids}
    suppressed = usage.decoding["suppress_tokens"]
    left = [each for each in suppressed if isinstance(each, list) or each not in banned]
    return replace(usage, decoding=usage.decoding | {"suppress_tokens": left})


def stored_type(checkpoint: Checkpoint) -> WeightType:
    """Return the number type that holds the weights without loss."""
    named = checkpoint.config.get("dtype") or checkpoint.config.get("torch_dtype")
    types = {"float16": WeightType.fp16, "bfloat16": WeightType.bf16}
    return types.get(str(named), WeightType.fp32)
