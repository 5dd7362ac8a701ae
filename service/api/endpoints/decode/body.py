"""The request of /v1/decode: its fields, and how those that need an alignment agree with others."""

from pydantic import Field

from service.api.answering.examples import SIMPLE, Examples
from service.api.reading.faults import Faults
from service.api.reading.field_types import Drafts, Partial, SourceField
from service.api.reading.requests import Ablate, AttentionSelection, Searching
from service.api.reading.selection import check_aligns, check_scores
from service.api.reading.texts import Split
from service.errors import Invalid
from service.serving.model import Model
from service.text.markup.document import MarkupKind

EXAMPLES: Examples = {
    "words": {
        "summary": "Pronounce two words",
        "value": {"source": ["attention", "transformer"]},
    },
    "attention": {
        "summary": "Pronounce a word, with the attention of each sound to the letters",
        "value": {"source": ["attention"], "attention": {"kinds": ["cross"]}},
    },
    "beams": {
        "summary": "Search with four beams and return the best three",
        "value": {"source": "read", "beam_size": 4, "num_hypotheses": 3},
    },
    "samples": {
        "summary": "Draw three samples; the same seed gives the same samples",
        "value": {
            "source": "transformer",
            "temperature": 1.0,
            "top_p": 0.9,
            "seed": 7,
            "num_hypotheses": 3,
        },
    },
    "choice": {
        "summary": "Choose between two given pronunciations",
        "value": {
            "source": "read",
            "allowed_targets": ["R EH1 D", "R IY1 D"],
            "beam_size": 2,
            "num_hypotheses": 2,
        },
    },
    "prefix": {
        "summary": "Continue a given beginning, with the two most probable sounds at each position",
        "value": {"source": "data", "target_prefix": "D AE1", "top_log_probs": 2},
    },
    "stop": {
        "summary": "Stop after a sound, or after a sequence of sounds",
        "value": {"source": "banana", "stop": ["AE1", "AH0 N AA1"]},
    },
    "varied": {
        "summary": "Repeat no pair of sounds, generate at least four, and never generate one",
        "value": {
            "source": "banana",
            "no_repeat_ngram_size": 2,
            "repetition_penalty": 1.2,
            "min_new_tokens": 4,
            "suppress_tokens": [20],
        },
    },
    "ablation": {
        "summary": "Pronounce a word with two heads of the last cross-attention switched off",
        "value": {
            "source": "read",
            "ablate": [{"kind": "cross", "layer": -1, "heads": [0, 1]}],
        },
    },
    "required": {
        "summary": "Pronounce a word with a given sound, or with one of two",
        "value": {"source": "read", "required": [["EH1", "EY1"]]},
    },
    "glossary": {
        "summary": "Require a sound wherever a source has a word",
        "value": {"source": ["read", "tomato"], "glossary": {"tomato": "AA1 T"}},
    },
    "split": {
        "summary": "Pronounce each line, and keep the lines as they are",
        "value": {"source": "  attention\n\ntransformer\n", "split": "sentences"},
    },
    "partial": {
        "summary": "Pronounce the words that the model can read, and say what is wrong with others",
        "value": {"source": ["attention", "7"], "partial": True},
    },
    "confidence": {
        "summary": "Say how probable each sound is, and return the second best answer as well",
        "value": {"source": "attention", "words": True, "beam_size": 2, "num_hypotheses": 2},
    },
    "stream": {
        "summary": "Stream each sound as soon as it is generated",
        "value": {"source": "pronunciation", "stream": True},
    },
    "start": {
        "summary": "Generate at most three sounds",
        "value": {"source": "photograph", "max_new_tokens": 3},
    },
    "markup": {
        "summary": "Pronounce the words of a document, and keep its tags at the sounds",
        "value": {"source": ["<b>attention</b>", "photo<b>graph</b>"], "markup": "xml"},
    },
    "draft": {
        "summary": "Decode faster by a draft of the target",
        "value": {"source": "photograph", "draft": "F OW1 T AH0 G R AE2 F"},
    },
    SIMPLE: {"value": {"source": "Hello"}},
}


class DecodeRequest(Searching):
    source: SourceField
    num_hypotheses: int = Field(
        default=1,
        ge=1,
        le=64,
        description="How many hypotheses to return: without a temperature, the best beams, at most"
        " beam_size of them; with a temperature, samples.",
    )
    top_log_probs: int = Field(
        default=0,
        ge=0,
        le=20,
        description="How many of the most probable tokens to return with each generated token.",
    )
    attention: AttentionSelection | None = Field(
        default=None,
        description="Which attention weights to return with each hypothesis. {} selects all"
        " cross-attention; null returns none.",
    )
    ablate: Ablate = Field(default=[])
    partial: Partial = False
    stream: bool = Field(
        default=False,
        description="Send the answer as server-sent events while it is generated.",
    )
    source_final: bool = Field(
        default=True,
        description="false: the source will grow. Each hypothesis then says how much of it is"
        " committed: what is aligned to the source before its last `hold` tokens. Send what is"
        " committed as target_prefix with the longer source, and the whole source with true."
        " Needs a model whose bundle names its alignment, and no split, markup, replace_unknown or"
        " required.",
    )
    hold: int | None = Field(
        default=None,
        ge=1,
        description="With source_final false: how many of the source's last tokens, special ones"
        " left out, may still change their meaning. More give a better target later. null: 4.",
    )
    words: bool = Field(
        default=False,
        description="Return the words of each target with their log-probs and entropies and, if the"
        " model's bundle names its alignment, with the words of the source that they are of.",
    )
    source_share: bool = Field(
        default=False,
        description="With words: say how much each word depends on the source at all. Every"
        " hypothesis is scored twice for it, given its source and given it with all tokens"
        " replaced. Needs a model that can score targets.",
    )
    split: Split = Field(
        default="none",
        description="sentences: split each source by lines and sentence marks, decode every"
        " sentence by itself, and put the targets into the places of the sentences, so that white"
        " space stays as it is. All options apply to each sentence; sentences count as sources"
        " where those are limited. A sentence that is too long for the model is split further,"
        " after the last clause mark that fits, else at the last space. Sentences without letters"
        " and digits stay as they are. Source must be a text or a list of texts.",
    )
    markup: MarkupKind | None = Field(
        default=None,
        description="Read each source as HTML or XML. A text with the tags inside is decoded"
        " without them, and the model's alignment puts each tag around the words that belong to its"
        " own: the answer has the same tags and is well-formed. Left as they are: elements with"
        ' translate="no" or class="notranslate"; code, kbd, samp, var, pre, script, style, svg,'
        " math and textarea; comments; placeholders such as {name}, %s and %(name)d."
        " The attributes alt, aria-label, placeholder and title of HTML are decoded too. Needs a"
        " model with an alignment, and sources that are texts. null: sources have no markup.",
    )
    replace_unknown: bool = Field(
        default=False,
        description="In `text`, put the source word that is aligned to it in the place of each"
        " token of unknown words; where the target has more of that word, only the source token."
        " Tokens and log_probs stay as they are. Needs a model with an alignment.",
    )
    draft: Drafts | None = Field(
        default=None,
        description="What the target will be like, for a faster greedy search:"
        ' "source" for the source itself, if the model copies most of it; or a text, or a list of'
        " texts or of lists of ids, one for each source, such as an earlier translation. An empty"
        " one is no draft for its source. Several tokens of a draft are checked in one step, and"
        " those that greedy search chooses are kept: the target is that of greedy search with any"
        " draft, but rounding may decide otherwise between tokens that are nearly equally probable."
        " Each hypothesis reports how many tokens were `drafted` and `accepted`. Needs beam_size 1,"
        " and no temperature, required, glossary or ablate. With split or markup, only"
        ' "source" is a draft.',
    )


def check_edits(body: DecodeRequest, model: Model, faults: Faults, apart: bool) -> None:
    """Raise NotFound if whole targets will be edited and the model cannot align. Add a fault for
    each field that needs the text as the model wrote it. `apart`: parts of markup are decoded by
    themselves."""
    if body.replace_unknown or (body.markup and not apart):
        check_aligns(model)
    edits = [name for name in ("markup", "replace_unknown") if getattr(body, name)]
    for name in edits:
        if body.stream:
            detail = f"needs whole targets, of which a stream sends parts: omit stream or {name}"
            faults.add(Invalid.at(f"/{name}", detail))
        if body.words:
            detail = f"counts characters of targets, which {name} changes: omit words or {name}"
            faults.add(Invalid.at("/words", detail))


def check_source_share(body: DecodeRequest, model: Model, faults: Faults) -> None:
    """Raise NotFound if the model cannot score targets. Add a fault if no words are asked for."""
    check_scores(model)
    if not body.words:
        detail = "is a number of words: set words to true, or omit source_share"
        faults.add(Invalid.at("/source_share", detail))


def check_growing(body: DecodeRequest, model: Model, faults: Faults) -> None:
    """Raise NotFound if the source will grow and the model cannot align. Add a fault for each field
    that contradicts source_final."""
    if not body.source_final:
        check_aligns(model)
        whole = {
            "split": body.split != "none",
            "markup": body.markup,
            "replace_unknown": body.replace_unknown,
        }
        for name in [each for each, given in whole.items() if given]:
            detail = "needs a whole source: omit it, or set source_final to true"
            faults.add(Invalid.at(f"/{name}", detail))
        if body.required:
            detail = "needs a whole source: omit it, or use glossary for words that have come"
            faults.add(Invalid.at("/required", detail))
    elif body.hold is not None:
        detail = "has no effect on a whole source: set source_final to false, or omit hold"
        faults.add(Invalid.at("/hold", detail))
