"""Bodies of requests and answers of the LibreTranslate API."""

from typing import Literal

from pydantic import BaseModel, Field

from service.api.reading.field_types import Plain, Strict


class TranslateRequest(Strict):
    q: Plain = Field(description="A text, or a list of texts in JSON.")
    source: str = Field(
        max_length=64,
        description="Code of its language, one of those that GET /languages lists; or auto, to"
        " detect it.",
    )
    target: str = Field(max_length=64, description="Code of the language to translate into.")
    format: Literal["text", "html"] = Field(
        default="text",
        description="html: translate the texts of HTML. A model that can align translates a text"
        " with the tags inside as a whole, another one each part between two tags by itself.",
    )
    alternatives: int = Field(
        default=0, ge=0, le=63, description="How many other translations to return, at most."
    )
    api_key: str | None = Field(
        default=None, description="An API key, instead of the header Authorization: Bearer KEY."
    )
    secret: str | None = Field(
        default=None, description="Has no effect. LibreTranslate's own page sends it."
    )

    @property
    def markup(self) -> Literal["html"] | None:
        return "html" if self.format == "html" else None


class DetectRequest(Strict):
    q: Plain = Field(description="A text, or a list of texts of one language in JSON.")
    api_key: str | None = Field(
        default=None, description="An API key, instead of the header Authorization: Bearer KEY."
    )


class Detection(BaseModel):
    """A language that a text may have."""

    language: str
    confidence: float = Field(description="0 to 100; 0 if nothing was detected.")


class TranslateAnswer(BaseModel):
    translatedText: str | list[str] = Field(description="A text, or one for each of a list.")
    alternatives: list[str] | list[list[str]] | None = Field(
        default=None, description="Other translations, best first. Absent unless requested."
    )
    detectedLanguage: Detection | list[Detection] | None = Field(
        default=None,
        description="The language that was detected, for a text or for each of a list: all texts"
        " of a list have the same. Absent unless source is auto.",
    )
    truncated: bool | list[bool] | None = Field(
        default=None,
        description="Whether a translation was cut at the model's longest target, for a text or for"
        " each of a list. Absent unless one was.",
    )


class Named(BaseModel):
    code: str
    name: str = Field(description="The code again.")


class Language(Named):
    targets: list[str] = Field(description="Codes that its texts can be translated into.")


class FrontendSettings(BaseModel):
    charLimit: int = Field(description="-1: only the limits of all requests apply.")
    frontendTimeout: int = Field(description="Milliseconds after a key press to wait for another.")
    apiKeys: bool = Field(description="Whether there are API keys.")
    keyRequired: bool = Field(description="Whether a request must carry one.")
    suggestions: bool
    filesTranslation: bool
    supportedFilesFormat: list[str]
    language: dict[Literal["source", "target"], Named] = Field(
        description="Languages to begin with."
    )


class LibreTranslateError(BaseModel):
    error: str = Field(description="What is wrong and what to send instead.")
    advice: str | None = Field(
        default=None,
        description="What to send instead, if the error is in the words of LibreTranslate.",
    )
