"""Say what is wrong with a text that a vocabulary cannot write."""

from collections.abc import Collection, Sequence, Set

from tokenizers import Encoding
from tokenizers import Tokenizer as Library

from service.errors import MOST_FAULTS, Fault

WORDS = "this model reads one word at a time, so send a list of words"
LISTED = 100  # tokens: errors list a vocabulary up to this size


def unknown_fault(
    pointer: str, text: str, encoding: Encoding, refused: Set[int], advice: Sequence[str]
) -> Fault:
    """Return the fault of a text with tokens that are refused.

    `advice` says what to send instead and, if words may be sent apart, also of a text of several.
    """
    offsets = encoding.offsets
    unknown = [i for i, token_id in enumerate(encoding.ids) if token_id in refused]
    places = dict.fromkeys(typed_token(text, offsets, i) for i in unknown[:MOST_FAULTS])
    quotes = ", ".join(f"{typed!r} at offset {start}" for typed, start in places)
    between = [text[slice(*offsets[i])].isspace() for i in unknown]
    general, *of_words = advice
    advised = of_words if any(between) and len(text.split()) > 1 else []
    advised = advised if advised and all(between) else [*advised, general]
    detail = f"has {quotes}, which the vocabulary lacks: {'; '.join(advised)}"
    return Fault(pointer, detail, [*dict.fromkeys(typed for typed, _ in places)])


def typed_token(text: str, offsets: Sequence[tuple[int, int]], i: int) -> tuple[str, int]:
    """Return the i-th token as it was typed, and its offset.

    The text reaches to the next token, so that combining marks stay with their letter.
    """
    start, end = offsets[i]
    following = offsets[i + 1][0] if i + 1 < len(offsets) else len(text)
    typed = text[start : max(end, following)].strip() or text[start:end]
    return typed, start


def advise(library: Library, special_ids: Collection[int]) -> str:
    """Return what to send instead: the tokens of a small vocabulary, small letters first."""
    if library.get_vocab_size() > LISTED:
        return "remove what it lacks"
    allowed = [token for token, i in library.get_vocab().items() if i not in special_ids]
    allowed.sort(key=lambda token: (not token.isalnum(), token.swapcase()))
    return f"send only {' '.join(allowed)}"
