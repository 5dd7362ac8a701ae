"""Types of request fields that accept several forms.

The form of a value is recognised before the value is validated, so that a fault is reported once,
not once per form. Each form has a tag ("as text"), which JSON pointers to faults leave out.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError


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


def check_unicode(text: str) -> str:
    """Raise for half a surrogate pair, which JSON can escape but no tokenizer can read."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = "has half a surrogate pair at offset {place}, which is not Unicode: remove it"
        raise PydanticCustomError("unicode", message, {"place": error.start}) from error
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


Unicode = Annotated[str, AfterValidator(check_unicode)]
Text = Annotated[Unicode, Tag("as text")]
Texts = Annotated[list[Unicode], Field(min_length=1, fail_fast=True), Tag("as texts")]
IdList = Annotated[list[int], Field(min_length=1, fail_fast=True)]
Ids = Annotated[
    list[IdList],
    Field(min_length=1, fail_fast=True),
    Tag("as ids"),
]
IdLists = Annotated[list[IdList], Field(min_length=1, fail_fast=True), BeforeValidator(check_lists)]
Sequences = Annotated[
    Text | Texts | Ids,
    Discriminator(
        source_variant,
        custom_error_type="sequences",
        custom_error_message="must be a text, a list of texts, or a list of lists of ids",
    ),
]
Plain = Annotated[
    Text | Texts,
    Discriminator(
        source_variant,
        custom_error_type="sequences",
        custom_error_message="must be a text or a list of texts",
    ),
]
Indices = Annotated[
    Annotated[Literal["all"], Tag("as all")]
    | Annotated[list[int], Field(min_length=1, max_length=1024, fail_fast=True), Tag("as indices")],
    Discriminator(
        indices_variant,
        custom_error_type="indices",
        custom_error_message="must be 'all' or a list of indices",
    ),
]

Source = Annotated[
    Sequences,
    Field(
        description="The input: a text, a list of texts, or a list of lists of token ids. Texts are"
        " tokenized, with the special tokens the model needs; ids are used unchanged.",
        examples=[["attention", "transformer"]],
    ),
]

Prefix = Annotated[
    Text | Annotated[list[int], Field(fail_fast=True), Tag("as list")],
    Discriminator(
        text_variant,
        custom_error_type="prefix",
        custom_error_message="must be a text or a list of ids",
    ),
]
Ending = Annotated[Unicode, AfterValidator(check_not_empty), Tag("as text")]
Endings = list[
    Annotated[
        Ending | Annotated[int, Tag("as id")],
        Discriminator(
            text_variant,
            custom_error_type="stop",
            custom_error_message="must be a text or an id",
        ),
    ]
]
Stop = Annotated[
    Ending | Annotated[Endings, Field(max_length=64, fail_fast=True), Tag("as list")],
    Discriminator(
        text_variant,
        custom_error_type="stop",
        custom_error_message="must be a text, or a list of texts and ids",
    ),
]
