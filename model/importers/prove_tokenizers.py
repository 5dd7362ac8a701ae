"""Prove that the converted tokenizers give the ids of the checkpoint's own."""

from importlib.metadata import version

from model.importers.compare import Encode, compare_pieces, sentencepiece_encoder
from model.importers.piece_file import PieceFile
from model.importers.probes import probes
from model.importers.proof import Proof
from model.importers.tokenizer_file import encode_with
from model.importers.vocabularies import Side, Vocabularies


def prove_pieces(vocabularies: Vocabularies) -> list[Proof]:
    """Compare the ids of the built-in texts, on each side, with those of the original tokenizer."""
    proofs: list[Proof] = []
    sides = {"source": vocabularies.source, "target": vocabularies.target}
    for name, side in sides.items():
        if side.original is None:
            proofs.append(Proof(f"{name} tokenizer", "-", "there is no reference tokenizer", None))
            continue
        library, encode = reference_of(side)
        different = compare_pieces(side.converted, encode)
        example = f", such as {different[0][:40]!r}" if different else ""
        result = f"{len(different)} of {len(probes())} texts have other ids{example}"
        if isinstance(side.original, PieceFile) and side.converted.dropped:
            result += f"; {side.converted.dropped} pieces of {side.original.path.name} have no id"
        reference = f"{library} {version(library)}"
        proofs.append(Proof(f"{name} tokenizer", reference, result, not different))
    return proofs


def reference_of(side: Side) -> tuple[str, Encode]:
    """Return the package that reads the original of a tokenizer, and its encoding of texts.

    The encoding returns None for texts with tokens that only one of the two finds in typed text.
    """
    if isinstance(side.original, PieceFile):
        package, encode = "sentencepiece", sentencepiece_encoder(side.original, side.names)
        typed = [name for name in side.original.user_defined if side.hides(name)]
    else:
        assert side.original is not None
        package, encode = "tokenizers", encode_with(side.original)
        typed = [name for name in side.original.get_vocab() if side.hides(name)]
    return package, lambda text: None if any(token in text for token in typed) else encode(text)
