"""Types of request fields that accept several forms.

The form of a value is recognised before the value is validated, so that a fault is reported once,
not once per form. Each form has a tag ("as text"), which JSON pointers to faults leave out.
"""

import json
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from service.api.reading.validation_errors import LONGEST_NAME, OPTION_OBJECTS, OTHERS
from service.bundle.decoding import LONGEST_SUPPRESSED, MOST_SUPPRESSED
from service.errors import MOST_FAULTS, Invalid, shorten
from service.text import tokenizer


def source_variant(value: Any) -> str | None:
    """Return the tag of a text, of texts or of lists of ids; None for anything else."""
    if isinstance(value, str):
        return "as text"
    if value == [] or (isinstance(value, list) and isinstance(value[0], str)):
        return "as texts"
    return "as ids" if isinstance(value, list) and isinstance(value[0], list) else None


def indices_variant(value: Any) -> str | None:
    """Return the tag of the word "all" or of a list."""
    if value == "all":
        return "as all"
    return "as indices" if isinstance(value, list) else None


def text_variant(value: Any) -> str | None:
    """Return the tag of a text, an id or a list."""
    kinds = {str: "as text", int: "as id", list: "as list"}
    return kinds.get(type(value))


def suppressed_variant(value: Any) -> str:
    """Return the tag of a list of ids, or of one that also has lists: each item is then validated
    in Python, which takes long."""
    return "as sequences" if isinstance(value, list) and list in map(type, value) else "as ids"


def by_form(variant: Callable[[Any], str | None], forms: str) -> Discriminator:
    """Return what chooses the type that validates a value, by its tag. `forms` says what it may
    be."""
    return Discriminator(variant, custom_error_type="form", custom_error_message=f"must be {forms}")


def require_unicode(text: str) -> str:
    """Raise for half a surrogate pair."""
    try:
        tokenizer.check_unicode(text, "")
    except Invalid as error:
        raise PydanticCustomError(
            "unicode", "{detail}", {"detail": error.faults[0].detail}
        ) from error
    return text


def check_not_empty(text: str) -> str:
    if not text:
        raise PydanticCustomError("empty", "must not be empty")
    return text


def check_lists(value: Any) -> Any:
    """Raise unless the value is a list of lists. A single list of ids is the usual mistake."""
    if isinstance(value, list) and (not value or isinstance(value[0], list)):
        return value
    raise PydanticCustomError("lists", "must be a list of lists of ids, such as [[5, 6], [7]]")


def check_entries(value: Any) -> Any:
    """Raise for a glossary that is too long, before each of its entries is validated."""
    if isinstance(value, dict) and len(cast("dict[str, Any]", value)) > MOST_ENTRIES:
        context = {"count": len(cast("dict[str, Any]", value)), "most": MOST_ENTRIES}
        message = "has {count} entries and the limit is {most}: send those that the sources need"
        raise PydanticCustomError("entries", message, context)
    return value


ALIKE = 0.85  # of the letters of two names, if one may be the other misspelt
MOST_ENTRIES = 2000  # of a glossary
NOT_EMPTY = {"field_type": "List", "min_length": 1, "actual_length": 0}
ItemFault = tuple[str, tuple[int, ...]]  # pydantic's type of error, and where it is


def fault_of_text(place: int, item: Any) -> ItemFault | None:
    """Return what is wrong with an item of a list of texts."""
    return None if isinstance(item, str) else ("string_type", (place,))


def fault_of_ids(place: int, item: Any, may_be_empty: bool = False) -> ItemFault | None:
    """Return what is first wrong with an item of a list of lists of ids."""
    if not isinstance(item, list):
        return "list_type", (place,)
    ids = cast("list[Any]", item)
    if not (ids or may_be_empty):
        return "too_short", (place,)
    wrong = (i for i, each in enumerate(ids) if type(each) is not int)
    return next((("int_type", (place, i)) for i in wrong), None)


def name_items(fault_of: Callable[[int, Any], ItemFault | None]) -> WrapValidator:
    """Return a validator of a list that names the first wrong items, and counts the others.

    pydantic alone would name one, or make an error for each: for 100,000 items this takes a second.
    """

    def validate(value: Any, validate_list: ValidatorFunctionWrapHandler) -> Any:
        try:
            return validate_list(value)
        except ValidationError:
            if not value:
                raise
            items: list[Any] = value  # source_variant or check_lists has seen that it is a list
            found = (fault_of(i, item) for i, item in enumerate(items))
            faults = [each for each in found if each]
            named = [
                InitErrorDetails(type=kind, loc=where, input=None, ctx=NOT_EMPTY)
                for kind, where in faults[:MOST_FAULTS]
            ]
            if others := len(faults) - len(named):
                count = PydanticCustomError(OTHERS, "and {count} others", {"count": others})
                named.append(InitErrorDetails(type=count, input=None))
            raise ValidationError.from_exception_data("list", named) from None

    return WrapValidator(validate)


TextsOrIds = str | Sequence[str | list[int]]
Unicode = Annotated[str, AfterValidator(require_unicode)]
TaggedText = Annotated[str, Tag("as text")]  # the tokenizer refuses what is not Unicode
Texts = Annotated[
    list[str], Field(min_length=1, fail_fast=True), name_items(fault_of_text), Tag("as texts")
]
IdList = Annotated[list[int], Field(min_length=1, fail_fast=True)]
Ids = Annotated[
    list[IdList], Field(min_length=1, fail_fast=True), name_items(fault_of_ids), Tag("as ids")
]
IdLists = Annotated[
    list[IdList],
    Field(min_length=1, fail_fast=True),
    name_items(fault_of_ids),
    BeforeValidator(check_lists),
]
TextsOrIdLists = Annotated[
    TaggedText | Texts | Ids,
    by_form(
        source_variant, "a text, a list of texts, or a list of lists of ids: [[5, 6]] for one text"
    ),
]
DraftIds = Annotated[
    list[list[int]],
    Field(min_length=1, fail_fast=True),
    name_items(partial(fault_of_ids, may_be_empty=True)),
    Tag("as ids"),
]
Drafts = Annotated[
    TaggedText | Texts | DraftIds,
    by_form(source_variant, '"source", a text, a list of texts, or a list of lists of ids'),
]
Plain = Annotated[TaggedText | Texts, by_form(source_variant, "a text or a list of texts")]
Indices = Annotated[
    Annotated[Literal["all"], Tag("as all")]
    | Annotated[list[int], Field(min_length=1, max_length=1024, fail_fast=True), Tag("as indices")],
    by_form(indices_variant, "'all' or a list of indices"),
]

SourceField = Annotated[
    TextsOrIdLists,
    Field(
        description="The input: a text, a list of texts, or a list of lists of token ids. Texts are"
        " tokenized, with the special tokens the model needs; ids are used unchanged.",
        examples=[["attention", "transformer"]],
    ),
]

Partial = Annotated[
    bool,
    Field(
        description="Answer valid sources even if others are refused or fail. Each failed source"
        " gets a FailedResult. Wrong options and exceeded request limits still refuse the whole"
        " request.",
    ),
]

TargetPrefix = Annotated[
    TaggedText | Annotated[list[int], Field(fail_fast=True), Tag("as list")],
    by_form(text_variant, "a text or a list of ids"),
]
Ending = Annotated[Unicode, AfterValidator(check_not_empty), Tag("as text")]
Endings = list[
    Annotated[Ending | Annotated[int, Tag("as id")], by_form(text_variant, "a text or an id")]
]
PhraseText = Annotated[Unicode, AfterValidator(check_not_empty), Field(max_length=200)]
Wanted = Annotated[
    Annotated[PhraseText, Tag("as text")]
    | Annotated[
        list[PhraseText], Field(min_length=1, max_length=8, fail_fast=True), Tag("as list")
    ],
    by_form(text_variant, "a text, or a list of texts of which one suffices"),
]
Stop = Annotated[
    Ending | Annotated[Endings, Field(max_length=64, fail_fast=True), Tag("as list")],
    by_form(text_variant, "a text, or a list of texts and ids"),
]

Suppressed = Annotated[
    Annotated[list[int], Field(max_length=MOST_SUPPRESSED, fail_fast=True), Tag("as ids")]
    | Annotated[
        list[
            Annotated[
                Annotated[int, Tag("as id")]
                | Annotated[
                    list[int],
                    Field(min_length=1, max_length=LONGEST_SUPPRESSED, fail_fast=True),
                    Tag("as list"),
                ],
                by_form(text_variant, "an id or a list of ids"),
            ]
        ],
        Field(max_length=MOST_SUPPRESSED, fail_fast=True),
        Tag("as sequences"),
    ],
    Discriminator(suppressed_variant),
    WithJsonSchema(  # a list of ids alone would be of both types
        {
            "type": "array",
            "maxItems": MOST_SUPPRESSED,
            "items": {
                "oneOf": [
                    {"type": "integer"},
                    {
                        "type": "array",
                        "items": {"type": "integer"},
                        "minItems": 1,
                        "maxItems": LONGEST_SUPPRESSED,
                    },
                ]
            },
        }
    ),
]
Required = Annotated[list[Wanted], Field(max_length=32, fail_fast=True)]
GlossaryEntries = Annotated[dict[PhraseText, Wanted], BeforeValidator(check_entries)]


def describe_defaults(schema: dict[str, Any]) -> None:
    """Say in the schema of a body that each optional field may be null, and name its default in its
    description.

    With `default` in the schema, generated clients would require the field (openapi-typescript) or
    send it in every request (openapi-python-client). Other clients send null for fields that their
    users have not set.
    """
    for name, field in schema["properties"].items():
        default = field.pop("default", None)
        if default is None:
            continue
        texts = {"title": field.pop("title", name), "description": field.pop("description")}
        texts["description"] += f" Default: {json.dumps(default)}."
        schema["properties"][name] = {"anyOf": [field, {"type": "null"}], **texts}


class Strict(BaseModel):
    """A body, or an object in it. An optional field that is null counts as left out."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, json_schema_extra=describe_defaults
    )

    instead: ClassVar[str] = ""  # to send in the place of a natural wrong guess

    @model_validator(mode="before")
    @classmethod
    def prepare(cls, value: Any) -> Any:
        """Leave out fields that are null, and report very many unknown fields as one fault: 100,000
        faults would take a second."""
        if cls.instead and not isinstance(value, dict | cls):
            message = "must be a JSON object: {example}"
            raise PydanticCustomError("object", message, {"example": cls.instead})
        if not isinstance(value, dict):
            return value
        given = cast("dict[str, Any]", value)
        fields = cls.model_fields
        if len(given) > len(fields) + 8 and cls.model_config.get("extra") == "forbid":
            context = {"count": len(given), "fields": ", ".join(fields)}
            message = "has {count} fields but only these are allowed: {fields}"
            raise PydanticCustomError("fields", message, context)
        optional = {name for name, field in fields.items() if not field.is_required()}
        return {k: each for k, each in given.items() if each is not None or k not in optional}


class Foreign(Strict):
    """An object of another service's protocol. Its clients and extensions add fields of their own,
    which are ignored unless they are spelled like one of ours."""

    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def refuse_misspelt(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        fields = [*cls.model_fields]
        others = (name for name in cast("dict[str, Any]", value) if name not in fields)
        for name in islice(others, MOST_FAULTS):
            near = get_close_matches(name[:LONGEST_NAME], fields, 1, ALIKE)
            if name in OPTION_OBJECTS and "parameters" in fields:
                near = ["parameters"]
            if near:
                context = {"name": shorten(name), "near": near[0]}
                raise PydanticCustomError("misspelt", "has {name}: did you mean {near}?", context)
        return value
