"""Read how a checkpoint decodes: generation_config.json, or the same keys of config.json."""

import re
from typing import Any, cast

from model.export.files.limits import OF_SOURCE, find_faults
from model.importers.checkpoint import GENERATION, MARIAN, OWN, Checkpoint
from model.importers.fields import CONFIG, eos_ids
from model.importers.files.marian import read_settings
from model.importers.vocabularies import Vocabularies
from model.network.config import InputError, TransformerConfig
from model.usage import GREEDY, Usage

# Options that Heed does not have, and the values at which they change nothing
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "do_sample": (False,),
    "num_beam_groups": (1,),
    "diversity_penalty": (0,),
    "penalty_alpha": (0,),
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
    "encoder_no_repeat_ngram_size": ("encoder_no_repeat_ngram_size", (int,)),
    "encoder_repetition_penalty": ("encoder_repetition_penalty", (int, float)),
}
KEYS = {ours: theirs for theirs, (ours, _) in NAMES.items()} | {  # of bundle.json: theirs
    "suppress_tokens": "bad_words_ids or suppress_tokens",
    "decoder_start": "forced_bos_token_id",
    "num_encoder_layers": "the number of encoder layers",
    "num_decoder_layers": "the number of decoder layers",
}
NUMBER = re.compile(r"[0-9]{1,9}([.][0-9]{1,9})?")
SETTINGS: dict[str, tuple[Any, ...]] = {  # of Marian that Heed lacks, and their harmless values
    "word-penalty": ("0", "0.0"),
    "output-sampling": ("false", [], ["0"], "0"),
    "force-decode": ("false",),
}
MARIAN_KEYS = {
    "beam_size": "beam-size",
    "length_penalty": "normalize",
    "num_encoder_layers": "enc-depth",
    "num_decoder_layers": "dec-depth",
    "num_heads": "transformer-heads",
}
OWN_KEYS = {
    "decoder_start": "start_id",
    "source_prefix": "source_prefix_ids",
    "source_suffix": "source_suffix_ids",
}
FROM_CONFIG = "_from_model_config"  # a generation_config.json that was made from config.json
OLD_FORCED = "force_bos_token_to_be_generated"


EXPECTED: dict[tuple[type, ...], str] = {
    (int,): "a whole number",
    (int, float): "a number",
    (bool,): "true or false",
}


class Generation:
    """The options under which Hugging Face's `generate` decodes this checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raise InputError naming an option that Heed does not have."""
        has_own = (checkpoint.folder / GENERATION).is_file()
        self._name = GENERATION if has_own else CONFIG
        self._options = checkpoint.optional_json(GENERATION) if has_own else checkpoint.config
        self._checkpoint = checkpoint
        for name, harmless in UNSUPPORTED.items():
            value = self._options.get(name)
            if value is not None and value not in harmless:
                raise self._refuse(name, "Heed has no such option: remove it, or set it to null")

    def search(self, config: TransformerConfig, forced: int) -> tuple[dict[str, Any], int]:
        """Return the options that requests inherit, and the default max_new_tokens.

        Numbers beyond what can make a difference in this network are lowered to it.
        """
        decoding = self.decoding(forced)
        most = self.max_new_tokens(config.max_target_length, forced)
        decoding["min_new_tokens"] = min(decoding["min_new_tokens"], most)
        for name in ("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"):
            if not 0 < decoding[name] <= config.max_target_length:
                decoding[name] = 0
        size = config.target_vocab_size
        if any(token_id >= size for ids in self.bad_words for token_id in ids):
            raise self._refuse("bad_words_ids", f"the vocabulary has {size} tokens")
        suppressed = decoding["suppress_tokens"]
        decoding["suppress_tokens"] = [
            each for each in suppressed if isinstance(each, list) or 0 <= each < size
        ]
        # Options that may be missing are left out if they change nothing
        return {k: each for k, each in decoding.items() if each != OF_SOURCE.get(k)}, most

    def decoding(self, forced: int) -> dict[str, Any]:
        """Return the options that requests inherit, under their names in bundle.json.

        Hugging Face's min_length counts the first id that the decoder reads, and the `forced` ids
        after it. Our min_new_tokens counts neither.
        """
        decoding = {**GREEDY, **OF_SOURCE, "early_stopping": False}
        for theirs, (ours, kinds) in NAMES.items():
            value = self._options.get(theirs)
            if value is None or (value == "never" and self._may_say_never(theirs)):
                continue
            if type(value) not in kinds:
                raise self._refuse(theirs, f"expected {EXPECTED[kinds]}")
            decoding[ours] = value
        new = self._has("min_new_tokens")  # then min_length does not apply
        least = self._whole("min_new_tokens") if new else self._whole("min_length") - 1
        decoding["min_new_tokens"] = max(least - forced, 0)
        alone = {*self._ids("suppress_tokens"), *self.bad_ids}
        longer = [ids for ids in self.bad_words if len(ids) > 1]
        decoding["suppress_tokens"] = [*sorted(alone), *longer]
        decoding["renormalize"] = self.renormalizes
        return decoding

    def max_new_tokens(self, positions: int, forced: int) -> int:
        """Return the default max_new_tokens, given the decoder's number of positions.

        Raise InputError if the checkpoint's limit leaves no room for a token.
        """
        longest = positions - forced
        name = "max_new_tokens" if self._has("max_new_tokens") else "max_length"
        if not self._has(name):
            return longest
        most = self._whole(name) - forced - (name == "max_length")  # which counts the first id
        if most < 1:
            raise self._refuse(name, "that leaves no room for a token: raise it")
        return min(longest, most)

    @property
    def forced_bos_id(self) -> int | None:
        """The id that is always generated first, as a summary's bos."""
        made = self._name == CONFIG or self._options.get(FROM_CONFIG)
        name = "bos_token_id" if made and self._options.get(OLD_FORCED) else "forced_bos_token_id"
        value = self._options.get(name)
        ids = cast("list[Any]", value) if isinstance(value, list) else [value]
        if value is None:
            return None
        if len(ids) != 1 or type(ids[0]) is not int or ids[0] < 0:
            raise self._refuse(name, "expected one id")
        return ids[0]

    @property
    def bad_ids(self) -> list[int]:
        """Ids that are never generated, because they stand alone in `bad_words`."""
        return [ids[0] for ids in self.bad_words if len(ids) == 1]

    @property
    def bad_words(self) -> list[list[int]]:
        """Sequences that are never generated. An end of a target that stands alone does not count:
        `generate` ignores a ban of it."""
        words = self._list("bad_words_ids")
        for ids in words:
            if not isinstance(ids, list) or not ids:
                raise self._refuse("bad_words_ids", "expected lists of ids")
            if any(type(each) is not int or each < 0 for each in cast("list[Any]", ids)):
                raise self._refuse("bad_words_ids", "expected lists of ids")
        ends = [[each] for each in eos_ids(self._checkpoint)] if words else []
        return [ids for ids in words if ids not in ends]

    def check_vocabularies(self, vocabularies: Vocabularies) -> None:
        """Raise InputError for an option that compares targets with sources, unless ids mean the
        same on both sides."""
        options = self.decoding(0)
        for name, harmless in OF_SOURCE.items():
            if options[name] != harmless and not vocabularies.are_one:
                reason = "sources and targets have two vocabularies, so Heed cannot compare them"
                raise self._refuse(name, f"{reason}: remove it, or set it to null")

    @property
    def renormalizes(self) -> bool:
        """Whether log-probs are normalized again after bans and the repetition penalty."""
        value = self._options.get("renormalize_logits") or False
        if type(value) is not bool:
            raise self._refuse("renormalize_logits", "expected true or false")
        return value

    def _may_say_never(self, name: str) -> bool:
        """Return whether early_stopping "never" is false: longer targets must not gain."""
        beams, penalty = self._options.get("num_beams"), self._options.get("length_penalty")
        penalty = 1 if penalty is None else penalty
        alike = beams in (None, 1) or (isinstance(penalty, int | float) and penalty <= 0)
        return name == "early_stopping" and alike

    def _has(self, name: str) -> bool:
        return self._options.get(name) is not None

    def _whole(self, name: str) -> int:
        value = self._options.get(name)
        value = 0 if value is None else value
        if type(value) is not int:
            raise self._refuse(name, "expected a whole number")
        return value

    def _ids(self, name: str) -> list[int]:
        ids = self._list(name)
        if any(type(token_id) is not int for token_id in ids):
            raise self._refuse(name, "expected a list of ids")
        return ids

    def _list(self, name: str) -> list[Any]:
        value = self._options.get(name)
        value = [] if value is None else value
        if not isinstance(value, list):
            raise self._refuse(name, "expected a list of ids")
        return cast("list[Any]", value)

    def _refuse(self, name: str, reason: str) -> InputError:
        value = self._options.get(name)
        return InputError(f"{self._checkpoint.folder / self._name} has {name} {value!r}: {reason}")


def check_lengths(checkpoint: Checkpoint, config: TransformerConfig, usage: Usage) -> None:
    """Raise InputError for what no bundle may hold, naming the checkpoint's key."""
    keys = {OWN: OWN_KEYS, MARIAN: MARIAN_KEYS}.get(checkpoint.config_name, KEYS)
    others = {CONFIG: f" or {GENERATION}", MARIAN: " or decoder.yml"}
    files = checkpoint.config_name + others.get(checkpoint.config_name, "")
    for key, value, expected in find_faults(config, usage):
        raise InputError(
            f"{checkpoint.folder}: {keys.get(key, key)} is {value}; expected {expected}: change it"
            f" in {files}"
        )


def marian_decoding(checkpoint: Checkpoint, unknown_id: int) -> dict[str, Any]:
    """Return the options that Marian's settings give, under their names in bundle.json.

    Marian never writes an unknown token unless it is allowed. Raise InputError for what Heed lacks.
    """
    settings = read_settings(checkpoint.folder)

    def number(name: str, default: float) -> float:
        value = settings.get(name, str(default))
        if not isinstance(value, str) or not NUMBER.fullmatch(value):
            raise refuse(name, "a number from 0")
        return float(value)

    def refuse(name: str, expected: str) -> InputError:
        value = str(settings[name])[:60]
        return InputError(
            f"{checkpoint.folder}: Marian's settings have {name} {value!r}; expected {expected}"
        )

    for name, harmless in SETTINGS.items():
        if settings.get(name, harmless[0]) not in harmless:
            raise refuse(name, f"{' or '.join(map(str, harmless))}: Heed has no such option")
    beams = number("beam-size", 1)
    if beams % 1:
        raise refuse("beam-size", "a whole number")
    allowed = settings.get("allow-unk") == "true"
    return {
        **GREEDY,
        "early_stopping": False,
        "beam_size": int(beams),
        "length_penalty": number("normalize", 0),
        "suppress_tokens": [] if allowed else [unknown_id],
    }
