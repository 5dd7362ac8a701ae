"""Read the names of tensors: without what wrappers add, and by the patterns of heed.toml."""

import re
from collections.abc import Iterable, Mapping, Sequence

from model.network.config import InputError

ANY = "*"  # in a pattern: any text
WRAPPER = re.compile(  # what torch.compile, FSDP and checkpointing put before a wrapped part
    r"(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)
AVERAGED = "n_averaged"  # what torch's AveragedModel counts besides the weights
LAYER = re.compile(r"(?<![^.])\d+(?![^.])")
PARAMETER = re.compile(r"(?<=\.)(weight|bias)$")
LISTED = 60  # names, as patterns, in a message


def without_wrappers(name: str) -> str:
    return WRAPPER.sub("", name)


def shared_prefix(names: Sequence[str], known: Sequence[str]) -> str:
    """Return the longest chain of `known` prefixes with which all names begin."""
    prefix = ""
    while names and (
        more := next(
            (each for each in known if all(name.startswith(prefix + each) for name in names)), ""
        )
    ):
        prefix += more
    return prefix


def matches(pattern: str, name: str) -> list[str] | None:
    """Return the texts that the stars of a pattern stand for; None if the name is another."""
    found = re.fullmatch("(.+?)".join(map(re.escape, pattern.split(ANY))), name)
    return None if found is None else list(found.groups())


def rename(names: Iterable[str], patterns: Mapping[str, str], start: str) -> dict[str, str]:
    """Return, by its new name, the name of each tensor. The first pattern that matches a name gives
    the new one, which begins with `start`; a name that none matches stays.

    Raise InputError if two tensors get one name, or a pattern matches none.
    """
    renamed: dict[str, str] = {}
    unused = set(patterns)
    for name in names:
        new = name
        for pattern, target in patterns.items():
            if (texts := matches(pattern, name)) is not None:
                unused.discard(pattern)
                new = fill(target, texts)
                new = new if new.startswith(start) else start + new
                break
        if new in renamed:
            raise InputError(f"names calls two tensors {new}: {renamed[new]} and {name}")
        renamed[new] = name
    if unused:
        stayed = [name for new, name in renamed.items() if new == name]
        raise InputError(
            f"names has {', '.join(sorted(unused))}, which matches no tensor that an earlier"
            f" pattern leaves; names that stay are {grouped(stayed) or 'none'}"
        )
    return renamed


def fill(target: str, texts: Sequence[str]) -> str:
    first, *others = target.split(ANY)
    return first + "".join(text + other for text, other in zip(texts, others, strict=True))


def grouped(names: Iterable[str]) -> str:
    """List names as patterns with counts: the number of a layer, weight and bias become stars."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(PARAMETER.sub(ANY, LAYER.sub(ANY, name, count=1)), []).append(name)
    patterns = [
        group[0] if len(group) == 1 else f"{pattern} ({len(group)})"
        for pattern, group in groups.items()
    ]
    return shortened(patterns, LISTED)


def shortened(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
