"""Validate a body, and turn pydantic's errors into faults, each with its place."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from service.errors import MOST_FAULTS, Fault, Invalid, describe_fault, shorten

Body = TypeVar("Body", bound=BaseModel)

OTHERS = "others"  # type of an error that stands for `count` other items of a list
NOT_A_FIELD = "is not a field"
VARIANT = "as "  # how the tags of union variants begin, which pydantic puts into locations
KEY = "[key]"  # how pydantic's location of a key ends, after its object's field and itself
LONGEST_NAME = 64  # characters of an unknown field that are compared with the fields
# The field of texts is the first of these that a body has: LibreTranslate's source is a language
TEXT = ("q", "inputs", "input", "source", "text")
TEXTS = (  # its names anywhere
    *TEXT,
    *("input_ids", "messages", "prompt", "sentence", "sentences"),
    *("sources", "src", "src_text", "texts"),
)
# Objects in which other APIs put options
OPTION_OBJECTS = (
    "config",
    "generate_kwargs",
    "generation_config",
    "kwargs",
    "options",
    "parameters",
    "params",
)
OTHER_NAMES: Mapping[str, Sequence[str]] = {
    # Our fields, by their names in other libraries and APIs; no field if we have nothing like it,
    # whatever is spelled alike
    "assistant_model": ("draft",),
    "attention_mask": (),
    "bad_words_ids": ("suppress_tokens",),
    "constraints": ("required",),
    "decoder_input_ids": ("target_prefix", "target"),
    "diversity_penalty": (),
    "do_sample": ("temperature",),
    "end_token": ("stop",),
    "eos_token_id": ("stop",),
    "force_words_ids": ("required",),
    "forced_bos_token_id": ("target_language",),
    "labels": ("target",),
    "lenpen": ("length_penalty",),
    "lexical_constraints": ("required",),
    "max_cache_len": (),
    "max_decoding_length": ("max_new_tokens",),
    "max_input_length": (),
    "max_length": ("max_new_tokens",),
    "max_matching_ngram_size": (),
    "max_tokens": ("max_new_tokens",),
    "min_decoding_length": ("min_new_tokens",),
    "min_length": ("min_new_tokens",),
    "n": ("num_hypotheses",),
    "n_best": ("num_hypotheses",),
    "nbest": ("num_hypotheses",),
    "num_beam_groups": (),
    "num_beams": ("beam_size",),
    "num_return_sequences": ("num_hypotheses",),
    "output_attentions": ("attention",),
    "output_logits": ("top_log_probs",),
    "output_scores": ("top_log_probs",),
    "prediction": ("draft",),
    "prefix_allowed_tokens_fn": ("allowed_targets",),
    "prefix_tokens": ("target_prefix",),
    "prompt_lookup_num_tokens": ("draft",),
    "return_attention": ("attention",),
    "return_scores": (),
    "sampling_temperature": ("temperature",),
    "sampling_topk": ("top_k",),
    "sampling_topp": ("top_p",),
    "sentence": ("split",),
    "sentences": ("split",),
    "sequence_bias": (),
    "split_sentences": ("split",),
    "src_lang": ("source_language",),
    "stop_sequences": ("stop",),
    "stop_strings": ("stop",),
    "stopping_criteria": ("stop",),
    "suppress_sequences": ("suppress_tokens",),
    "tag_handling": ("markup",),
    "target_lookbehind": (),
    "target_text": ("target",),
    "tgt_lang": ("target_language",),
    "top_h": (),
    "top_n_tokens": ("top_log_probs",),
}
# Fields of ids
IDS = (
    *("contrast", "draft", "source", "target"),
    *("suppress_tokens", "target_prefix", "token_ids"),
)
NOT_AN_ID = "must be an integer, the id of a token: /v1/tokenize gives the ids of a text"


def validate(model: type[Body], value: Any, strict: bool | None = None) -> Body:
    """Return a body of this value. Raise Invalid with every fault and its place. `strict`, if
    given, replaces the model's own setting: the fields of a form are texts."""
    try:
        return model.model_validate(value, strict=strict)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        raise read_errors(found, model) from None


def read_errors(errors: Sequence[Any], body: type[BaseModel]) -> Invalid:
    """Return pydantic's errors as one error. Only the last unknown field of each object lists the
    object's fields, and only if there is no nearer advice: a list for each would fill the refusal.
    """
    found = [each for each in errors if each["type"] != OTHERS]
    faults = [read_fault(each, body) for each in found[:MOST_FAULTS]]
    listing = {
        each["loc"][:-1]: i
        for i, each in enumerate(found[:MOST_FAULTS])
        if each["type"] == "extra_forbidden" and faults[i].detail == NOT_A_FIELD
    }
    for parents, i in listing.items():
        fields = f"; the fields are {', '.join(model_at(body, parents).model_fields)}"
        faults[i] = replace(faults[i], advice=fields)
    others = sum(each["ctx"]["count"] for each in errors if each["type"] == OTHERS)
    return Invalid.of(faults, len(found) - len(faults) + others)


def read_fault(error: Any, body: type[BaseModel]) -> Fault:
    """Return one of pydantic's errors as a fault."""
    location = error["loc"]
    if error["type"] == "extra_forbidden":
        *parents, unknown = location
        detail = describe_unknown_field(str(unknown), body, parents)
        return Fault(pointer_to(parents) + segment(unknown), detail)
    if location[2:] == (KEY,):
        return Fault(pointer_to(location[:2]), f"is a key that {describe_fault(error)}")
    if error["type"] == "int_type" and location[0] in IDS:
        return Fault(pointer_to(location), NOT_AN_ID)
    example = example_at(body, location) if error["type"] == "list_type" else ""
    return Fault(pointer_to(location), describe_fault(error) + example)


def describe_unknown_field(name: str, body: type[BaseModel], parents: Sequence[int | str]) -> str:
    """Return what is wrong with an unknown field of an object in a body, and what to send
    instead if it can be told."""
    known = [*model_at(body, parents).model_fields]
    text = text_field(known)
    if name in OPTION_OBJECTS and text and not parents:
        if "parameters" in known:
            return f"{NOT_A_FIELD}: did you mean parameters?"
        return f"{NOT_A_FIELD}: put its fields next to {text}"
    nested = model_at(body, ["attention"]).model_fields if "attention" in known else ()
    if name in nested and not parents:
        return f"{NOT_A_FIELD}: put it into attention"
    near = near_fields(name, known)
    return NOT_A_FIELD + (f": did you mean {' or '.join(near)}?" if near else "")


def model_at(model: type[BaseModel], path: Sequence[int | str]) -> type[BaseModel]:
    """Return the type of the object that `path`, nested field names and indices of lists, leads to
    in `model`."""
    for name in (each for each in path if isinstance(each, str)):
        annotation = model.model_fields[name].annotation
        variants = [annotation, *get_args(annotation)]  # the model, or a union or list with it
        model = next(v for v in variants if isinstance(v, type) and issubclass(v, BaseModel))
    return model


def example_at(body: type[BaseModel], location: Sequence[int | str]) -> str:
    """Return the first example of a field, to follow "must be a list"."""
    *parents, name = (part for part in location if not str(part).startswith(VARIANT))
    if isinstance(name, int):
        return ""
    examples = model_at(body, parents).model_fields[name].examples
    return f", such as {json.dumps(examples[0])}" if examples else ""


def near_fields(unknown: str, known: Sequence[str]) -> list[str]:
    """Return our fields that other libraries call by this name; if none does, the one spelled most
    alike."""
    if unknown not in OTHER_NAMES and unknown not in TEXTS:
        return get_close_matches(unknown[:LONGEST_NAME], known, 1)
    names = [name for name in OTHER_NAMES.get(unknown, ()) if name in known]
    text = text_field(known)
    return [*names, text] if text and unknown in TEXTS else names


def text_field(known: Sequence[str]) -> str | None:
    """Return the field of texts, if one of these is."""
    return next((name for name in TEXT if name in known), None)


def pointer_to(location: Sequence[int | str]) -> str:
    """Return a location of pydantic's as a JSON pointer (RFC 6901), without variants of unions."""
    return "".join(segment(part) for part in location if not str(part).startswith(VARIANT))


def segment(part: int | str) -> str:
    """Return one step of a JSON pointer. Keys are shortened: one may fill a body."""
    return "/" + shorten(str(part)).replace("~", "~0").replace("/", "~1")
