"""Read the parameters of Hugging Face's `generate`, as pipelines and text-generation-inference take
them, into options of /v1/decode."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from pydantic_core import PydanticCustomError

from service.api.reading.texts import TO_SPLIT
from service.api.reading.validation_errors import near_fields
from service.bundle.decoding import LONGEST_SUPPRESSED
from service.bundle.manifest import Manifest
from service.errors import MOST_FAULTS, Fault, Invalid, shorten

OURS = {  # by their names
    "num_beams": "beam_size",
    "num_return_sequences": "num_hypotheses",
    "length_penalty": "length_penalty",
    "early_stopping": "early_stopping",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "seed": "seed",
    "repetition_penalty": "repetition_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
    "encoder_repetition_penalty": "encoder_repetition_penalty",
    "encoder_no_repeat_ngram_size": "encoder_no_repeat_ngram_size",
    "suppress_tokens": "suppress_tokens",
    "stop": "stop",
    "stop_sequences": "stop",
    "stop_strings": "stop",
    "src_lang": "source_language",
    "tgt_lang": "target_language",
}
THEIRS = {ours: theirs for theirs, ours in reversed(OURS.items())}
OUR_WORDS = re.compile(r"\b(beam_size|num_hypotheses|source_language|target_language)\b")
CUT = ", or set parameters/truncation to true"
LENGTHS = {  # the first of two names is the one that counts if both are given
    "max_new_tokens": "max_new_tokens",
    "max_length": "max_new_tokens",
    "min_new_tokens": "min_new_tokens",
    "min_length": "min_new_tokens",
}
BAD_WORDS = "bad_words_ids"
FLAGS = ("do_sample", "details")
DRAWING = ("temperature", "top_k", "top_p")
CUTTING = (True, "longest_first", "only_first")  # values of truncation
NOT_CUTTING = (False, "do_not_truncate")
# Parameters that change no answer: the model's own tokenizer decides on spaces.
NO_EFFECT = ("clean_up_tokenization_spaces", "use_cache")
# Parameters that are not offered, and the values at which they would change nothing
HARMLESS: dict[str, Any] = {
    "best_of": 1,
    "decoder_input_details": False,
    "diversity_penalty": 0,
    "frequency_penalty": 0,
    "num_beam_groups": 1,
    "return_full_text": False,
    "return_tensors": False,
    "return_text": True,
    "top_n_tokens": 0,
    "typical_p": 1,
    "watermark": False,
}
NESTED = "generate_parameters"  # an object with more parameters
BESIDE = ("inputs", "model", "options", "stream")  # fields next to `parameters`
# Fields of /v1/decode for which there is no parameter
ELSEWHERE = ("allowed_targets", "attention", "required", "target_prefix", "top_log_probs")
KNOWN = (*OURS, BAD_WORDS, *LENGTHS, *FLAGS, "truncation", *NO_EFFECT)
ALL = tuple(dict.fromkeys((*KNOWN, *HARMLESS, *THEIRS, NESTED)))


class Parameters(NamedTuple):
    """Options of /v1/decode; `names` are those that the client has for them."""

    options: dict[str, Any]
    names: Mapping[str, str]
    details: bool
    cuts: bool  # whether texts that are too long are cut

    @property
    def seed(self) -> int | None:
        return self.options.get("seed")

    def rename(self, fault: Fault) -> Fault:
        """Return a fault of /v1/decode in the names of the client."""
        names = {**THEIRS, **self.names}
        ours, slash, rest = fault.pointer.removeprefix("/").partition("/")
        theirs = f"parameters/{names[ours]}" if ours in names else ours
        pointer = f"/{'inputs' if ours == 'source' else theirs}{slash}{rest}"
        detail = fault.detail.replace(TO_SPLIT, CUT)
        detail = OUR_WORDS.sub(lambda found: names[found[1]], detail)
        return Fault(pointer if fault.pointer else "", detail)


def read_parameters(given: Mapping[str, Any], manifest: Manifest) -> Parameters:
    """Return the options of a request. Raise Invalid for a parameter that Heed lacks."""
    parameters = merge_nested(given)
    check_known(parameters)
    for flag in FLAGS:
        if not isinstance(parameters.get(flag, False), bool):
            raise Invalid.at(f"/parameters/{flag}", "must be true or false")
    options = {ours: parameters[theirs] for theirs, ours in OURS.items() if theirs in parameters}
    names = {ours: theirs for theirs, ours in OURS.items() if theirs in parameters}
    for theirs, ours in LENGTHS.items():
        if theirs in parameters and ours not in options:
            options[ours] = read_length(theirs, parameters[theirs], manifest)
            names[ours] = theirs
    check_least(parameters, options, names, manifest)
    if BAD_WORDS in parameters:
        add_bad_words(options, parameters[BAD_WORDS], manifest)
    if options.get("top_k") == 0 and options["top_k"] is not False:  # which switches it off
        del options["top_k"]
    drawing = [name for name in DRAWING if name in options]
    if parameters.get("do_sample", bool(drawing)):
        check_beams(parameters)
        options.setdefault("temperature", 1.0)
    else:
        options = {name: each for name, each in options.items() if name not in (*DRAWING, "seed")}
    cuts = read_truncation(parameters.get("truncation", False))
    return Parameters(options, names, parameters.get("details", False), cuts)


def check_least(
    parameters: Mapping[str, Any],
    options: Mapping[str, Any],
    names: Mapping[str, str],
    manifest: Manifest,
) -> None:
    """Raise Invalid if the least length is more than the most, in the names and numbers of the
    client."""
    longest = manifest.target_positions
    least = options.get("min_new_tokens", 0)
    most = options.get("max_new_tokens", min(longest, manifest.decoding.max_new_tokens))
    if least <= most:
        return
    name = names["min_new_tokens"]
    other = names.get("max_new_tokens", "max_new_tokens")
    detail = f"is {parameters[name]}, but targets have at most {parameters[name] - least + most}"
    advice = f"lower {name}{f' or raise {other}' if most < longest else ''}"
    raise Invalid.at(f"/parameters/{name}", f"{detail} tokens: {advice}")


def check_beams(parameters: Mapping[str, Any]) -> None:
    """Raise Invalid if sampling begins without a temperature, which /v1/decode would name, and
    there are several beams."""
    beams = parameters.get("num_beams")
    if "temperature" in parameters or type(beams) is not int or beams <= 1:
        return
    name = next(each for each in ("do_sample", *DRAWING) if each in parameters)
    detail = "starts sampling, which num_beams > 1 (beam search) cannot be combined with"
    raise Invalid.at(f"/parameters/{name}", f"{detail}; leave one of them out")


def add_bad_words(options: dict[str, Any], value: Any, manifest: Manifest) -> None:
    """Add sequences to those that are never generated. As in `generate`, an end of a target that
    stands alone is none of them."""
    size, ends = manifest.config.target_vocab_size, [[each] for each in manifest.eos_ids]
    if not isinstance(value, list):
        raise Invalid.at(f"/parameters/{BAD_WORDS}", "must be a list of lists of token ids")
    given = cast("list[list[int]]", value)
    for i, word in enumerate(given):
        if not is_word(word, size):
            detail = f"must be a list of 1 to {LONGEST_SUPPRESSED} token ids from 0 to {size - 1}"
            raise Invalid.at(f"/parameters/{BAD_WORDS}/{i}", detail)
    words = [word for word in given if word not in ends]
    suppressed = options.setdefault("suppress_tokens", [])
    if isinstance(suppressed, list):  # else /v1/decode refuses it
        options["suppress_tokens"] = [*suppressed, *words]


def is_word(value: Any, size: int) -> bool:
    if not isinstance(value, list) or not 1 <= len(value) <= LONGEST_SUPPRESSED:
        return False
    return all(type(each) is int and 0 <= each < size for each in cast("list[Any]", value))


def read_truncation(value: Any) -> bool:
    """Return whether texts that are too long are cut."""
    if value not in (*CUTTING, *NOT_CUTTING) or type(value) is int:
        detail = "must be true, false, longest_first, only_first or do_not_truncate"
        raise Invalid.at("/parameters/truncation", detail)
    return value in CUTTING


def merge_nested(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all parameters that are not null, with those of an object in them. Raise Invalid for
    one that is in both."""
    nested = given.get(NESTED) or {}
    if not isinstance(nested, dict):
        raise Invalid.at(f"/parameters/{NESTED}", "must be a JSON object")
    ours, theirs = map(without_nulls, (given, cast("dict[str, Any]", nested)))
    if both := [name for name in ours if name in theirs]:
        raise Invalid.at(f"/parameters/{NESTED}", f"has {shorten(both[0])} again: send it once")
    every = {**ours, **theirs}
    return {name: each for name, each in every.items() if name != NESTED}


def without_nulls(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in given.items() if each is not None}


def check_places(body: Mapping[str, Any], fields: Sequence[str]) -> None:
    """Raise PydanticCustomError for parameters that stand among the `fields` of a body, also
    misspelt, or in its `options`."""
    options = body.get("options")
    inside = [*cast("dict[str, Any]", options)] if isinstance(options, dict) else []
    wrong = [name for name in inside if name in ALL and name not in NO_EFFECT]
    check_place("in options", {name: THEIRS.get(name, name) for name in wrong})
    found = dict[str, str]()
    for name in [name for name in body if name not in fields][:MOST_FAULTS]:
        near = [name] if name in KNOWN else near_fields(name, [*fields, *ALL])
        if near and near[0] not in fields:
            found[name] = THEIRS.get(near[0], near[0])
    check_place("beside inputs", found)


def check_place(place: str, found: Mapping[str, str]) -> None:
    """Raise PydanticCustomError for parameters found at a place, each with its right name."""
    if found:
        names, meant = (", ".join(map(shorten, each)) for each in (found, found.values()))
        message = "has {names} {place}: put {meant} into parameters"
        context = {"names": names, "place": place, "meant": meant}
        raise PydanticCustomError("misplaced", message, context)


def check_known(parameters: Mapping[str, Any]) -> None:
    """Raise Invalid for parameters that Heed lacks and that would change the answer.

    The message begins as that of `generate`: huggingface_hub's client reads the names in it, warns,
    and sends the request again without them.
    """
    unknown = [
        name
        for name, value in parameters.items()
        if name not in KNOWN and not (name in HARMLESS and value == HARMLESS[name])
    ]
    if not unknown:
        return
    named = [shorten(name) for name in unknown[:MOST_FAULTS]]
    ours = [each for name in named for each in near_fields(name, (*KNOWN, *THEIRS))]
    near = dict.fromkeys(THEIRS.get(each, each) for each in ours)
    advice = f"did you mean {' or '.join(near)}? " if near else ""
    outside = " and ".join(name for name in named if name in BESIDE)
    advice += f"put {outside} beside parameters; " if outside else ""
    fields = dict.fromkeys(each for name in named for each in near_fields(name, ELSEWHERE))
    advice += f"POST /v1/decode takes {' and '.join(fields)}; " if fields else ""
    raise Invalid(
        f"The following `model_kwargs` are not used by the model: {named}: {advice}the parameters"
        f" are {', '.join(KNOWN)}"
    )


def read_length(name: str, value: Any, manifest: Manifest) -> int:
    """Return a length in new tokens as Heed counts them: without any id that the decoder starts
    with. `generate` counts the ids after the first one, such as a language, as new, and all in the
    names without `new`.

    A largest length beyond the positions of the model is lowered to them: it is only the most.
    """
    start = manifest.limits.max_target_length + 1 - manifest.target_positions
    counted = start - 1 if "new" in name else start
    if type(value) is not int or value < 0:
        raise Invalid.at(f"/parameters/{name}", "must be a whole number")
    if LENGTHS[name] == "min_new_tokens":
        return max(value - counted, 0)
    if value <= counted:
        raise Invalid.at(
            f"/parameters/{name}",
            f"is {value}, which leaves no room for a token: give at least {counted + 1}",
        )
    return min(value - counted, manifest.target_positions)
