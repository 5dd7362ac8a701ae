"""Open the tokenizers of a bundle."""

import os

from tokenizers import Tokenizer as Library

from service.bundle.files import LARGEST_TOKENIZER, check_size
from service.bundle.languages import fill
from service.bundle.manifest import Bundle
from service.errors import StartupError
from service.text.compose import with_compose
from service.text.tokenizer import LibraryError, Tokenizer, call


def open_tokenizers(bundle: Bundle) -> tuple[Tokenizer, Tokenizer]:
    """Return the tokenizers of source and target. Raise StartupError if one cannot be read, or
    has an id that the model lacks."""
    manifest = bundle.manifest
    named = {manifest.unknown_id: "unknown", manifest.pad_id: "padding"}
    forbidden = {i: name for i, name in named.items() if i is not None}
    in_source = "target_language" in (*manifest.source_prefix, *manifest.source_suffix)
    source = Tokenizer(
        open_library(
            bundle,
            manifest.tokenizers.source,
            manifest.config.source_vocab_size,
            manifest.tokenizers.compose,
        ),
        manifest.limits.max_source_length,
        forbidden,
        size=manifest.config.source_vocab_size,
        languages=manifest.languages.target if in_source else {},
        composes=manifest.tokenizers.compose,
    )
    target = Tokenizer(
        open_target(bundle),
        manifest.target_positions,
        forbidden,
        generated=True,
        size=manifest.config.target_vocab_size,
        composes=manifest.tokenizers.compose,
    )
    prefix, suffix = fill(manifest.source_prefix, {}), fill(manifest.source_suffix, {})
    return source.between(prefix, suffix), target.between([], [manifest.eos_id])


def open_target(bundle: Bundle) -> Library:
    """Return the library's tokenizer of the target, which an engine needs to find stop texts.
    Raise StartupError if it cannot be read, or has an id that the model lacks."""
    manifest = bundle.manifest
    tokenizers = manifest.tokenizers
    size = manifest.config.target_vocab_size
    return open_library(bundle, tokenizers.target, size, tokenizers.compose)


def open_library(bundle: Bundle, name: str, vocab_size: int, compose: bool) -> Library:
    # Else the first batch starts threads. The library reads this variable alone.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    path = bundle.path(name)
    check_size(path, LARGEST_TOKENIZER)
    try:
        library = call(lambda: Library.from_file(str(path)))
    except LibraryError as error:
        raise StartupError(
            f"{path} is not a tokenizer: {error}: export the bundle again"
        ) from error
    library.no_padding()  # an endless one would take the memory
    library.no_truncation()  # texts beyond the limit are refused instead
    if compose and library.normalizer:
        library.normalizer = with_compose(library.normalizer)
    ids = library.get_vocab().values()
    if ids and max(ids) >= vocab_size:
        raise StartupError(
            f"{path} has the id {max(ids)}, but the model has embeddings for only {vocab_size}"
            " tokens: export the bundle again with the tokenizers it was trained with"
        )
    return library
