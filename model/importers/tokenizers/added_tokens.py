"""Read the tokens that a checkpoint's files add to its vocabulary, and tell which can be typed.

A token is structural if it marks the ends of a text, a gap or a language. Typed, it is text, so
that nobody ends a source or changes its language by what they type. All others, such as a `<sep>`
that a fine-tune added, are read in texts and written into them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from tokenizers import AddedToken

from model.importers.checkpoint import GENERATION, Checkpoint
from model.network.config import InputError

STORED = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
HIDDEN = " "  # ends the name of a token that no text reaches
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
ENDS = ("bos_token", "eos_token", "unk_token", "pad_token", "mask_token")
END_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
LISTS = ("additional_special_tokens", "extra_special_tokens")
STRUCTURAL = re.compile(r"</?s>|<(?:pad|unk|mask)>|<(?:extra_id|mask|unk)_\d+>")
FLAGS = ("single_word", "lstrip", "rstrip", "special")


@dataclass(frozen=True, slots=True)
class Lexicon:
    """The names of a whole vocabulary, by id. The first `size` come from the vocabulary's own file.

    `tokens` are, by id, the tokens that the checkpoint's files list, and all after `size`.
    A text may hold the tokens with the ids `typed`.
    """

    names: list[str]
    size: int
    tokens: dict[int, AddedToken]
    typed: frozenset[int]

    def stored(self, token_id: int) -> AddedToken:
        """Return a token as the bundle's tokenizer has it: one that no text reaches is special,
        and its name is hidden."""
        token = self.tokens[token_id]
        if token_id not in self.typed:
            return AddedToken(token.content + HIDDEN, normalized=False, special=True)
        return with_flags(token, special=False)

    @property
    def added(self) -> list[AddedToken]:
        """What a tokenizer of the vocabulary's own file lacks: tokens after it, or found in texts
        before their pieces are."""
        return [self.stored(i) for i in self.tokens if i >= self.size or i in self.typed]

    @property
    def typed_tokens(self) -> list[AddedToken]:
        return [self.tokens[i] for i in sorted(self.typed)]

    @property
    def structural(self) -> list[str]:
        """Names of the vocabulary's own file that the files list and no text reaches."""
        return [self.names[i] for i in self.tokens if i < self.size and i not in self.typed]


def with_flags(token: AddedToken, **flags: bool) -> AddedToken:
    kept = {name: getattr(token, name) for name in (*FLAGS, "normalized")}
    return AddedToken(token.content, **kept | flags)


def extend(
    checkpoint: Checkpoint,
    names: Sequence[str],
    rows: int,
    code: re.Pattern[str] | None = None,
    implied: Sequence[str] = (),
) -> Lexicon:
    """Return a vocabulary with the tokens that the checkpoint's files add to `names`, and those
    `implied` by them, whose ids follow.

    The embedding has `rows`: added and structural tokens beyond them, such as BART's <mask>, cannot
    be read by the model, and are left out.
    `code` matches the names of language tokens. An id without a name, "" in `names`, gets one that
    no text reaches. A name that the files give another id than `names` is theirs.
    """
    while len(names) > rows and STRUCTURAL.fullmatch(names[-1]):
        names = names[:-1]
    listed = read_added(checkpoint, names, implied)
    tokens = {i: token for i, token in listed.items() if i < rows}
    size = max(len(names), max(tokens, default=-1) + 1)
    extended = [*names, *[""] * (size - len(names))]
    for i, name in enumerate(extended):
        if i not in tokens and (i >= len(names) or not name):
            tokens[i] = AddedToken(f"<hole {i}>", special=True)
        if i in tokens:
            extended[i] = tokens[i].content
    places = {token.content: i for i, token in tokens.items()}
    extended = [
        name if places.get(name, i) == i else name + HIDDEN for i, name in enumerate(extended)
    ]
    structural = ends(checkpoint, extended)
    typed = {
        i
        for i, token in tokens.items()
        if i in listed
        and token.content not in structural
        and not STRUCTURAL.fullmatch(token.content)
        and not (code and code.fullmatch(token.content))
    }
    return Lexicon(extended, len(names), dict(sorted(tokens.items())), frozenset(typed))


def ends(checkpoint: Checkpoint, names: Sequence[str]) -> set[str]:
    """Return the names of the tokens that begin, end or pad texts, by any file. A separator that
    has a role but no place around a text is not one of them: a fine-tune may have added it."""
    found = {name for key, name in tokens_with_roles(checkpoint) if key in ENDS}
    try:
        found |= around(checkpoint.optional_json(STORED).get("post_processor"))
    except (TypeError, LookupError) as error:
        raise InputError(
            f"{checkpoint.folder / STORED} has a post_processor of another form than the tokenizers"
            " library writes: copy or download it again"
        ) from error
    for file in (checkpoint.config, checkpoint.optional_json(GENERATION)):
        for key in END_IDS:
            value = file.get(key)
            for i in cast("list[Any]", value if isinstance(value, list) else [value]):
                if type(i) is int and 0 <= i < len(names):
                    found.add(names[i])
    return found


def around(processor: Any) -> set[str]:
    """Return the names of the tokens that a post-processor of tokenizer.json puts around texts."""
    if not isinstance(processor, dict):
        return set()
    parts = cast("dict[str, Any]", processor)
    nested = [around(each) for each in parts.get("processors") or []]
    ends = [parts[key][0] for key in ("cls", "sep") if parts.get(key)]
    return {*(parts.get("special_tokens") or {}), *ends}.union(*nested)


def read_added(
    checkpoint: Checkpoint, names: Sequence[str], implied: Sequence[str] = ()
) -> dict[int, AddedToken]:
    """Return the tokens that the checkpoint's files list or imply, by id.

    Where files contradict each other, the one that Hugging Face reads first is right. Tokens that
    are listed without an id have the id of their name, or else follow all others.
    """
    placed: dict[int, AddedToken] = {}
    ids: dict[str, int] = {}
    for i, token in with_ids(checkpoint):
        if i not in placed and token.content not in ids:
            placed[i], ids[token.content] = token, i
    known = {name: i for i, name in enumerate(names)}
    by_class = [AddedToken(name, special=True) for name in implied]
    for token in [*by_class, *without_ids(checkpoint)]:
        if token.content in ids:
            continue
        i = known.get(token.content, max(len(names), max(placed, default=-1) + 1))
        if i not in placed:  # a name that another file gave away
            placed[i], ids[token.content] = token, i
    return placed


def with_ids(checkpoint: Checkpoint) -> Iterator[tuple[int, AddedToken]]:
    """Yield every token that a file lists with its id, those of the decisive file first."""
    decoder = checkpoint.optional_json(TOKENIZER_CONFIG).get("added_tokens_decoder") or {}
    for i, token in as_object(checkpoint, TOKENIZER_CONFIG, decoder).items():
        yield as_id(checkpoint, TOKENIZER_CONFIG, i), as_token(checkpoint, TOKENIZER_CONFIG, token)
    for entry in as_list(checkpoint, STORED, checkpoint.optional_json(STORED).get("added_tokens")):
        token = as_object(checkpoint, STORED, entry)
        yield as_id(checkpoint, STORED, token.get("id")), as_token(checkpoint, STORED, token)
    special = {token.content for token in without_ids(checkpoint)}
    for name, i in checkpoint.optional_json("added_tokens.json").items():
        yield as_id(checkpoint, "added_tokens.json", i), AddedToken(name, special=name in special)


def without_ids(checkpoint: Checkpoint) -> list[AddedToken]:
    """Return the special tokens that files list by name: languages, then those with a role."""
    found: list[AddedToken] = []
    for file in (TOKENIZER_CONFIG, "special_tokens_map.json"):
        content = checkpoint.optional_json(file)
        for key in LISTS:
            named = content.get(key)  # a list, or an object of tokens by their roles
            values = [*named.values()] if isinstance(named, dict) else named
            listed = as_list(checkpoint, file, values)
            found += [as_token(checkpoint, file, value, special=True) for value in listed]
    roles = [AddedToken(name, special=True) for _, name in tokens_with_roles(checkpoint)]
    return [*found, *roles]


def tokens_with_roles(checkpoint: Checkpoint) -> list[tuple[str, str]]:
    """Return pairs of a role and its token, such as eos_token and </s>, that the files list."""
    found: list[tuple[str, str]] = []
    for file in (TOKENIZER_CONFIG, "special_tokens_map.json"):
        content = checkpoint.optional_json(file)
        found += [
            (key, as_token(checkpoint, file, content[key]).content)
            for key in NAMED
            if content.get(key)
        ]
    return found


def as_object(checkpoint: Checkpoint, file: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise damaged(checkpoint, file, value)
    return cast("dict[str, Any]", value)


def as_list(checkpoint: Checkpoint, file: str, value: Any) -> list[Any]:
    """Return a list that a file may lack."""
    if not isinstance(value or [], list):
        raise damaged(checkpoint, file, value)
    return value or []


def as_id(checkpoint: Checkpoint, file: str, value: Any) -> int:
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if type(value) is not int or value < 0:
        raise damaged(checkpoint, file, value)
    return value


def as_token(checkpoint: Checkpoint, file: str, value: Any, *, special: bool = False) -> AddedToken:
    """Return a token that a file gives by its name, or with flags."""
    fields: Mapping[str, Any] = {"content": value} if isinstance(value, str) else value
    content = as_object(checkpoint, file, fields).get("content")
    if not isinstance(content, str) or not content:
        raise damaged(checkpoint, file, value)
    flags = {name: bool(fields.get(name, False)) for name in FLAGS}
    flags["special"] |= special
    normalized = bool(fields.get("normalized", not flags["special"]))
    return AddedToken(content, **flags, normalized=normalized)


def damaged(checkpoint: Checkpoint, file: str, value: Any) -> InputError:
    return InputError(
        f"{checkpoint.folder / file} lists the token {value!r}: give each its text and its id, as"
        " save_pretrained writes them"
    )
