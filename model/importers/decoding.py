"""Read how a checkpoint decodes: generation_config.json, or the same keys of config.json."""

from typing import Any, cast

from model.importers.checkpoint import GENERATION, Checkpoint
from model.network.config import InputError
from model.usage import GREEDY

# Options that Heed does not have, and the values at which they change nothing
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "do_sample": (False,),
    "num_beam_groups": (1,),
    "diversity_penalty": (0,),
    "penalty_alpha": (0,),
    "encoder_repetition_penalty": (1,),
    "encoder_no_repeat_ngram_size": (0,),
    "exponential_decay_length_penalty": (),
    "sequence_bias": (),
    "guidance_scale": (1,),
    "begin_suppress_tokens": ([],),
    "forced_decoder_ids": ([],),
    "force_words_ids": ([],),
    "constraints": ([],),
    "watermarking_config": (),
    "stop_strings": ([],),
    "max_time": (),
    "dola_layers": (),
    "token_healing": (False,),
}
NAMES: dict[str, tuple[str, tuple[type, ...]]] = {  # by their name: ours, and its types
    "num_beams": ("beam_size", (int,)),
    "length_penalty": ("length_penalty", (int, float)),
    "early_stopping": ("early_stopping", (bool,)),
    "no_repeat_ngram_size": ("no_repeat_ngram_size", (int,)),
    "repetition_penalty": ("repetition_penalty", (int, float)),
}


EXPECTED: dict[tuple[type, ...], str] = {
    (int,): "a whole number",
    (int, float): "a number",
    (bool,): "true or false",
}


class Generation:
    """The options under which Hugging Face's `generate` decodes this checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raise InputError naming an option that Heed does not have."""
        self._options = checkpoint.optional_json(GENERATION)
        self._name = GENERATION
        if not self._options:
            self._options, self._name = checkpoint.config, "config.json"
        self._folder = checkpoint.folder
        for name, harmless in UNSUPPORTED.items():
            value = self._options.get(name)
            if value is not None and value not in harmless:
                raise self._refuse(name, "Heed has no such option: remove it, or set it to null")

    def decoding(self, forced: int) -> dict[str, Any]:
        """Return the options that requests inherit, under their names in bundle.json.

        Hugging Face's min_length counts the first id that the decoder reads, and the `forced` ids
        after it. Our min_new_tokens counts neither.
        """
        decoding = {**GREEDY, "early_stopping": False}
        for theirs, (ours, kinds) in NAMES.items():
            value = self._options.get(theirs)
            if value is None:
                continue
            if type(value) not in kinds:
                raise self._refuse(theirs, f"expected {EXPECTED[kinds]}")
            decoding[ours] = value
        new = self._has("min_new_tokens")  # then min_length does not apply
        least = self._count("min_new_tokens") if new else self._count("min_length") - 1
        decoding["min_new_tokens"] = max(least - forced, 0)
        decoding["suppress_tokens"] = sorted({*self._ids("suppress_tokens"), *self.bad_ids})
        decoding["renormalize"] = self.renormalizes
        return decoding

    def max_new_tokens(self, positions: int, forced: int) -> int:
        """Return the default max_new_tokens, given the decoder's number of positions."""
        longest = positions - forced
        if most := self._count("max_new_tokens"):
            return min(longest, most - forced)
        if most := self._count("max_length"):
            return min(longest, most - 1 - forced)
        return longest

    @property
    def forced_bos_id(self) -> int | None:
        """The id that is always generated first, as a summary's bos."""
        return self._count("forced_bos_token_id") if self._has("forced_bos_token_id") else None

    @property
    def bad_ids(self) -> list[int]:
        """Ids that are never generated; each must stand alone in its list."""
        words = cast("list[list[int]]", self._options.get("bad_words_ids") or [])
        if any(len(ids) != 1 for ids in words):
            raise self._refuse("bad_words_ids", "Heed bans single tokens: remove the longer lists")
        return [token_id for ids in words for token_id in ids]

    @property
    def renormalizes(self) -> bool:
        """Whether log-probs are normalized again after bans and the repetition penalty."""
        return bool(self._options.get("renormalize_logits"))

    def _has(self, name: str) -> bool:
        return self._options.get(name) is not None

    def _count(self, name: str) -> int:
        value = self._options.get(name)
        if value is None:
            return 0
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._refuse(name, "expected a whole number")
        return value

    def _ids(self, name: str) -> list[int]:
        return cast("list[int]", self._options.get(name) or [])

    def _refuse(self, name: str, reason: str) -> InputError:
        value = self._options.get(name)
        return InputError(f"{self._folder / self._name} has {name} {value!r}: {reason}")
