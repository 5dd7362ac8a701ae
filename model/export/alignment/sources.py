"""Sources on which the alignment of a bundle is looked for."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from model.data.sentences import SENTENCES, readable
from model.data.tokenizers import unknown_id_of
from model.export.checks.samples import random_rows
from model.network.config import InputError
from model.usage import Usage, filler

MOST, FEWEST = 40, 8  # sources
LONGEST = 96  # ids of a text
RANDOM = 12  # ids of a random source
WORK = 1e12  # products of weights and tokens: about a minute on one core


class Reader:
    """Reads texts as the service does, with the ids of a language around them."""

    def __init__(self, manifest: dict[str, Any], tokenizer: Tokenizer) -> None:
        languages = manifest["languages"]
        usage = Usage(
            decoder_start=manifest["decoder_start"],
            max_new_tokens=manifest["decoding"]["max_new_tokens"],
            unknown_id=manifest["unknown_id"],
            source_languages=languages["source"],
            target_languages=languages["target"],
            default_target=languages.get("default_target"),
        )
        fill = filler(usage)
        self.start = fill(manifest["decoder_start"])
        self._around = fill(manifest["source_prefix"]), fill(manifest["source_suffix"])
        room = manifest["limits"]["max_source_length"] - sum(map(len, self._around))
        self._longest = min(LONGEST, room)
        self._tokenizer, self._unknown_id = tokenizer, unknown_id_of(tokenizer)
        self._examples = [each["source"] for each in manifest.get("examples", [])]

    def sources(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of texts or, if there are none, of the bundle's examples and of built-in
        sentences. A model that reads no sentence may read their words; else ids are random.

        Raise InputError if the tokenizer knows nothing of the texts.
        """
        rows = [self._encode(text) for text in texts]
        if not texts:
            sentences = readable(self._encode, self._unknown, SENTENCES)
            words = {name: words_of(own) for name, own in SENTENCES.items()}
            rows = [self._encode(text) for text in self._examples]
            rows += sentences or readable(self._encode, self._unknown, words)
        rows = [row for row in rows if row and self._unknown(row) < 1]
        if texts and not rows:
            raise InputError("the tokenizer knows no token of the texts: give others")
        rows = rows or self._random()
        prefix, suffix = self._around
        return [[*prefix, *row[: self._longest], *suffix] for row in rows]

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def _unknown(self, ids: Sequence[int]) -> float:
        return sum(each == self._unknown_id for each in ids) / len(ids)

    def _random(self) -> list[list[int]]:
        added = self._tokenizer.get_added_tokens_decoder()
        known = {*self._tokenizer.get_vocab().values()} - added.keys() - {self._unknown_id}
        lengths = [min(RANDOM, self._longest)] * MOST
        return random_rows(np.array(sorted(known)), lengths, np.random.default_rng(0))


def words_of(texts: Sequence[str]) -> list[str]:
    """Return the longer words of texts without the marks around them, each once."""
    words = (word.strip(".,:;!?\"'“”„«»()¿¡").lower() for text in texts for word in text.split())
    return [*dict.fromkeys(word for word in words if len(word) > 3)]


def spread(sources: Sequence[list[int]], config: dict[str, Any]) -> list[list[int]]:
    """Return sources of all lengths, each once: as many as can be occluded in about a minute."""
    ordered = sorted(map(list, dict.fromkeys(map(tuple, sources))), key=len)
    chosen = ordered
    for count in range(min(MOST, len(ordered)), 0, -1):
        chosen = [ordered[(2 * i + 1) * len(ordered) // (2 * count)] for i in range(count)]
        work = weights_of(config) * sum(len(each) * (len(each) + 1) for each in chosen)
        if work <= WORK or count <= FEWEST:
            break
    return chosen


def weights_of(config: dict[str, Any]) -> int:
    """Return about how many weights a token is multiplied with."""
    d_model = config["d_model"]
    attention = 2 * d_model * config["num_heads"] * (config["d_qk"] + config["d_v"])
    feed_forward = 2 * d_model * config["d_ff"]
    encoder = config["num_encoder_layers"] * (attention + feed_forward)
    own = 2 * d_model**2 if config.get("decoder") == "ssru" else attention
    decoder = config["num_decoder_layers"] * (own + attention + feed_forward)
    return encoder + decoder + d_model * config["target_vocab_size"]
