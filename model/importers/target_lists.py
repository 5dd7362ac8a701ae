"""Choose the tokens that targets in a language may have."""

from collections.abc import Collection, Mapping
from pathlib import Path
from string import ascii_letters

import regex

from model.data.tokenizers import unknown_id_of
from model.export.checks.samples import IdArray, IdPairs
from model.export.files.manifest import LARGEST, MIB, TARGET_LISTS, Precision
from model.importers.proofs.proof import Proof
from model.importers.proofs.texts import read_lines
from model.importers.tokenizers.added_tokens import HIDDEN
from model.importers.tokenizers.compare import compose
from model.importers.vocabularies import Side
from model.network.config import InputError, TransformerConfig
from model.usage import Usage

Targets = Mapping[str, Path | None]  # files of texts in each language; None: by its script
SCRIPT = regex.compile(r".+[_-]([A-Z][a-z]{3})")
SCRIPTS = {  # of Unicode, where it has not one of the same name
    "Hans": ["Hani"],
    "Hant": ["Hani"],
    "Jpan": ["Hani", "Hira", "Kana"],
    "Kore": ["Hang", "Hani"],
}
LETTER = r"[\p{L}\p{M}]--\p{Script=Common}--\p{Script=Inherited}"  # of some scripts, not of all
OF_SCRIPT = r"\p{{scx={}}}"
BYTE = regex.compile("<0x[0-9A-F]{2}>")
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # of sentencepiece
AT_ONCE = 10_000  # lines
NAMED = 5  # tokens that a proof names
TOKEN_BYTES = 4  # of an id in the file of all lists, besides less than a MiB of names


def read_targets(given: str) -> Targets:
    """Return the languages of `--targets`: CODE or CODE=FILE, separated by commas. Raise InputError
    if one is named twice, or has an equals sign without a file."""
    targets: dict[str, Path | None] = {}
    for part in given.split(",") if given else ():
        code, equals, file = map(str.strip, part.partition("="))
        if code in targets:
            raise InputError(f"--targets has {code!r} twice: give it once, with a file or without")
        if equals and not file:
            raise InputError(f"--targets has {part!r}, which names no file: give {code}=FILE")
        targets[code] = Path(file) if equals else None
    return targets


def check_targets(targets: Targets, usage: Usage, precision: Precision) -> None:
    """Raise InputError for a model with shortlists, for fp16 alone, for a language without ids, for
    a file that cannot be read, and for a code that needs one because it names no script."""
    if targets and usage.shortlists is not None:
        raise InputError(
            "--targets is not for a model with shortlists: leave it out, or convert the folder"
            " without its file of shortlists"
        )
    if targets and precision is Precision.fp16:
        raise InputError(
            "--targets is not for fp16, which scores all tokens: leave it out, or give another"
            " --precision, such as all"
        )
    for code, file in targets.items():
        if not usage.target_languages.get(code):
            known = [each for each, ids in usage.target_languages.items() if ids]
            advice = f"give some of {', '.join(known)}" if known else "leave --targets out"
            raise InputError(
                f"--targets has {code!r}, which is not a target language that this model has a"
                f" token for: {advice}"
            )
        if file is None and not scripts_of(code):
            raise InputError(
                f"--targets has {code}, whose code names no script: give {code}=FILE, with texts in"
                " this language, one a line"
            )
        if file is not None and not file.is_file():
            raise InputError(
                f"{file} of --targets is not a file: give one with a text on each line"
            )
        if file is not None:
            read_lines(file)  # one that is empty is refused in seconds, not minutes


def check_size(lists: Mapping[str, IdArray]) -> None:
    """Raise InputError for more tokens than the file of all lists may hold."""
    count, most = sum(map(len, lists.values())), (LARGEST[TARGET_LISTS] - MIB) // TOKEN_BYTES
    if count > most:
        raise InputError(
            f"the lists of --targets have {count} tokens together; the limit is {most}: give fewer"
            " languages, or CODE=FILE for those whose script has most tokens"
        )


def list_tokens(
    side: Side, config: TransformerConfig, usage: Usage, targets: Targets, code: str
) -> set[int]:
    """Return the ids of all tokens without letters, of the language's own, and of those of its
    texts or, without a file of these, of its script."""
    tokenizer, pieces, file = side.tokenizer, pieces_of(side), targets[code]
    codes = (*usage.source_languages.values(), *usage.target_languages.values())
    found = without(LETTER, pieces) | {i for i, piece in pieces.items() if BYTE.fullmatch(piece)}
    added = tokenizer.get_added_tokens_decoder()
    found |= {i for i, token in added.items() if token.special} | {unknown_id_of(tokenizer)}
    found |= of_texts(side, pieces, read_lines(file)) if file else of_script(pieces, code)
    found.difference_update(*codes)
    found |= {*config.specials, *usage.other_eos_ids, *usage.target_languages[code]}
    return {i for i in found if i is not None}


def prove_list(code: str, listed: Collection[int], pairs: IdPairs, start: int, side: Side) -> Proof:
    """Compare with decoding by all tokens: greedy search writes the same text by the list if all
    tokens of the text are on it, and only then. `pairs` are sources, of which none helped to make
    the list, and what the decoder reads of targets, which begin with `start` ids."""
    texts = [target[start:] for _, target in pairs]
    missing = [each for target in texts for each in target if each not in listed]
    tokens, changed = sum(map(len, texts)), sum(not {*target} <= {*listed} for target in texts)
    size, held = side.tokenizer.get_vocab_size(), tokens - len(missing)
    result = (
        f"{len(listed)} of {size} tokens; {changed} of {len(texts)} texts change;"
        f" {held} of {tokens} of their tokens are listed"
    )
    if missing:
        names = [side.tokenizer.id_to_token(i) or str(i) for i in dict.fromkeys(missing)]
        result += f", and not {', '.join(names[:NAMED])}: give {code}=FILE with more texts"
    return Proof(f"tokens of {code}", "decoding by all tokens", result, not changed)


def of_script(pieces: Mapping[int, str], code: str) -> set[int]:
    """Return the tokens that have no letter of other scripts than the code names, and single ones
    from A to Z, which spell names and addresses in texts of any script."""
    own = "".join(map(OF_SCRIPT.format, scripts_of(code)))
    spelling = {i for i, piece in pieces.items() if piece in ascii_letters and len(piece) == 1}
    return without(f"{LETTER}--[{own}]", pieces) | spelling


def without(letters: str, pieces: Mapping[int, str]) -> set[int]:
    """Return the tokens that have none of these letters."""
    pattern = regex.compile(f"[{letters}]", regex.V1)
    return {i for i, piece in pieces.items() if not pattern.search(piece)}


def of_texts(side: Side, pieces: Mapping[int, str], lines: list[str]) -> set[int]:
    """Return the tokens of texts, and those that spell their characters one by one."""
    if side.converted.compose:
        lines = [compose(line, side.tokenizer) for line in lines]
    found: set[int] = set()
    for first in range(0, len(lines), AT_ONCE):
        batch = lines[first : first + AT_ONCE]
        encoded = side.tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        found.update(*(each.ids for each in encoded))
    spelt = {*"".join(pieces[i] for i in found)}
    return found | {i for i, piece in pieces.items() if piece in spelt}


def scripts_of(code: str) -> list[str]:
    """Return Unicode's names of the script that a code such as fra_Latn ends in; none without."""
    match = SCRIPT.fullmatch(code)
    scripts = SCRIPTS.get(match[1], [match[1]]) if match else []
    try:
        regex.compile("".join(map(OF_SCRIPT.format, scripts)))
    except regex.error:  # Unicode has no such script
        return []
    return scripts


def pieces_of(side: Side) -> dict[int, str]:
    """Return the text of each token, without the sign of a space before it."""
    vocabulary = side.tokenizer.get_vocab()
    return {i: name.removesuffix(HIDDEN).removeprefix(SPACE) for name, i in vocabulary.items()}
