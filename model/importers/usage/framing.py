"""Find the ids that a checkpoint's own tokenizer puts around a source."""

from dataclasses import dataclass

from model.importers.checkpoint import Checkpoint
from model.importers.fields import CONFIG, eos_ids, id_of, start_id
from model.importers.tokenizers.added_tokens import HIDDEN, STORED, TOKENIZER_CONFIG
from model.importers.tokenizers.kinds import (
    GENERIC,
    PREFIX_SPACE,
    class_of,
    is_byte_level,
    kind_of,
)
from model.importers.tokenizers.tokenizer_file import open_whole
from model.importers.vocabularies import Vocabularies
from model.network.config import InputError
from model.usage import Codes, Slot

SOURCE_SLOT: Slot = "source_language"
TARGET_SLOT: Slot = "target_language"
SlottedIds = list[int | Slot]
BARE = "GPT2Tokenizer"  # begins the names of classes that put nothing around a text


@dataclass(frozen=True, slots=True)
class Frame:
    """Templates of the ids before and after a source."""

    prefix: SlottedIds
    suffix: SlottedIds

    @property
    def has_language(self) -> bool:
        return SOURCE_SLOT in (*self.prefix, *self.suffix)


def read_frame(checkpoint: Checkpoint, vocabularies: Vocabularies) -> Frame:
    """Return the ids around a source. Raise InputError if the token at its end is missing."""
    kind, languages = kind_of(checkpoint), vocabularies.languages
    target: SlottedIds = [TARGET_SLOT] if languages and kind in ("marian", "t5") else []
    if frame := deciding_frame(checkpoint, languages):
        return Frame([*target, *frame.prefix], frame.suffix)
    if kind == "blenderbot-small" or class_of(checkpoint).startswith(BARE):
        return Frame(target, [])
    eos = id_of_role(checkpoint, vocabularies, "eos_token", "</s>")
    if ends_with_language(checkpoint, languages):
        return Frame([], [eos, SOURCE_SLOT])
    match kind:
        case "nllb" | "m2m_100" | "mbart":
            return Frame([SOURCE_SLOT], [eos])
        case "small100":
            return Frame([TARGET_SLOT], [eos])
        case "bart":
            return Frame([id_of(checkpoint, CONFIG, "bos_token_id")], [eos])
        case "t5" if is_byte_level(checkpoint) or class_of(checkpoint).startswith(PREFIX_SPACE):
            # CodeT5 has the tokenizer of RoBERTa
            return Frame(
                [id_of_role(checkpoint, vocabularies, "cls_token", "<s>")],
                [id_of_role(checkpoint, vocabularies, "sep_token", "</s>")],
            )
        case _:  # Marian, Pegasus and T5, whose language, if any, is that of the target
            return Frame(target, [eos])


def stored_frame(checkpoint: Checkpoint, languages: Codes) -> Frame | None:
    """Return the ids that the post-processor of tokenizer.json puts around a text; None if the
    file has no tokenizer."""
    if "model" not in checkpoint.optional_json(STORED):
        return None
    encoding = open_whole(checkpoint.folder / STORED).encode("a")
    slots: dict[int, Slot] = {ids[0]: SOURCE_SLOT for ids in languages.values() if len(ids) == 1}
    inner = [i for i, added in enumerate(encoding.special_tokens_mask) if not added]
    if not inner:  # the text is unknown to it
        return None
    ids: SlottedIds = [slots.get(i, i) for i in encoding.ids]
    return Frame(ids[: inner[0]], ids[inner[-1] + 1 :])


def deciding_frame(checkpoint: Checkpoint, languages: Codes) -> Frame | None:
    """Return the ids of tokenizer.json's post-processor; None if they are not the checkpoint's own.

    Classes of several languages put ids of their own around a text, whatever the file has.
    """
    kind, generic = kind_of(checkpoint), class_of(checkpoint) in GENERIC
    several = kind in ("nllb", "m2m_100", "mbart")
    if kind in ("marian", "small100", "plbart", "blenderbot-small") or (several and not generic):
        return None
    frame = stored_frame(checkpoint, languages)
    if frame is None or (several and not frame.has_language):
        return None
    return frame if generic or frame.prefix or frame.suffix else None


def ends_with_language(checkpoint: Checkpoint, languages: Codes) -> bool:
    """Return whether the tokenizer's class puts the language of a source after its end."""
    match kind_of(checkpoint):
        case "plbart":
            return True
        case "mbart":
            return not is_mbart_50(checkpoint, languages)
        case "nllb":
            return bool(checkpoint.optional_json(TOKENIZER_CONFIG).get("legacy_behaviour"))
        case _:
            return False


def is_mbart_50(checkpoint: Checkpoint, languages: Codes) -> bool:
    """Return whether the language is before a source: files may name no class, or another one.

    The decoder of mBART-50 begins with eos, that of mBART-25 with a language.
    """
    if class_of(checkpoint).startswith("MBart50"):
        return True
    frame = stored_frame(checkpoint, languages)
    if frame and frame.has_language:
        return SOURCE_SLOT in frame.prefix
    return start_id(checkpoint) in eos_ids(checkpoint)


def id_of_role(checkpoint: Checkpoint, vocabularies: Vocabularies, role: str, default: str) -> int:
    """Return the id that the tokenizer gives a role in sources. The network may have another."""
    named = checkpoint.optional_json(TOKENIZER_CONFIG).get(role) or default
    name = str(named.get("content", default) if isinstance(named, dict) else named)
    tokenizer = vocabularies.source.tokenizer
    found = (tokenizer.token_to_id(each) for each in (name + HIDDEN, name))
    token_id = next((each for each in found if each is not None), None)
    if token_id is None:
        raise InputError(
            f"{checkpoint.folder}: the source tokenizer has no {name}, which is put around a text:"
            " give the files that belong to this model"
        )
    return token_id
