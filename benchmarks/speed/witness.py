"""CTranslate2's own conversion of a Hugging Face checkpoint, which decodes the same source ids."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ctranslate2
import torch
from ctranslate2.converters import TransformersConverter

from benchmarks.kit.process import Ids
from service.bundle.manifest import Manifest
from service.search.options import SearchOptions

BATCH = 64  # sources that are decoded together
# CTranslate2 reads these keys of old configurations; today's classes no longer have them.
NORMS = {  # normalize_before, normalize_embedding
    "bart": (False, True),
    "mbart": (True, True),
    "pegasus": (True, False),
}


class IdTokenizer:
    """Names each token by its id, since CTranslate2 takes texts only.

    It stands in for the checkpoint's own tokenizer. Padding has the name by which the converter
    finds it in Marian's vocabulary.
    """

    pad_token = "<pad>"

    def __init__(self, config: Any) -> None:
        """`config` is that of a Hugging Face model."""
        self._size, self._pad_id = config.vocab_size, config.pad_token_id
        self.eos_token = self.name(config.eos_token_id)
        self.bos_token = self.unk_token = self.eos_token  # ids lack neither, and get no bos
        self.unk_token_id = config.eos_token_id
        self.special_tokens_map: dict[str, Any] = {}

    def name(self, token_id: int) -> str:
        return self.pad_token if token_id == self._pad_id else str(token_id)

    def id(self, name: str) -> int:
        return self._pad_id if name == self.pad_token else int(name)

    def get_vocab(self) -> dict[str, int]:
        return {self.name(i): i for i in range(self._size)}

    def convert_ids_to_tokens(self, token_id: int) -> str:
        return self.name(token_id)


class Converter(TransformersConverter):
    """CTranslate2's converter, which is given what it assumes of a checkpoint."""

    tokenizer: IdTokenizer  # once the model is loaded

    def load_tokenizer(self, *_: Any, **options: Any) -> Any:
        del options
        return self.tokenizer

    def load_model(self, *arguments: Any, **options: Any) -> Any:
        model: Any = super().load_model(*arguments, **options)
        kind, self.tokenizer = model.config.model_type, IdTokenizer(model.config)
        if kind in NORMS:
            model.config.normalize_before, model.config.normalize_embedding = NORMS[kind]
        if kind in ("t5", "mt5"):
            # The converter scales what enters the output projection if this key is true. Today's
            # classes always have it true; only T5 1.0 is scaled.
            model.config.tie_word_embeddings = kind == "t5" and model.config.scale_decoder_outputs
        if kind == "marian":
            move_start(model)
        return model


def move_start(model: Any) -> None:
    """Add the embedding of Marian's first token to the decoder's first position.

    CTranslate2 takes it for zero, as in OPUS-MT. Nothing else stands at that position, so the
    network stays the same.
    """
    config, positions = model.config, model.get_decoder().embed_positions
    start = model.get_decoder().embed_tokens.weight[config.decoder_start_token_id]
    scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
    with torch.no_grad():
        positions.weight[0] += scale * start


class Witness:
    """A checkpoint that CTranslate2 has converted to a folder of `work`."""

    def __init__(self, checkpoint: Path, work: Path, manifest: Manifest) -> None:
        """`manifest` is that of our bundle, whose ids are the checkpoint's."""
        self._folder, self._manifest = work / "ctranslate2", manifest
        converter = Converter(str(checkpoint))
        converter.convert(str(self._folder))
        self._tokenizer = converter.tokenizer
        config = json.loads((self._folder / "config.json").read_text())
        self._starts_itself = config["decoder_start_token"] is not None  # mBART-25 does not

    def decode(
        self, sources: Ids, language: Sequence[int], compute_type: str, options: SearchOptions
    ) -> Ids:
        """Return the ids of the best hypothesis of each source."""
        prefix = self._names(self._manifest.start_ids(language)[self._starts_itself :])
        translator = ctranslate2.Translator(str(self._folder), compute_type=compute_type)
        found = translator.translate_batch(
            [self._names(ids) for ids in sources],
            [prefix] * len(sources),
            beam_size=options.beam_size,
            max_batch_size=BATCH,
            max_input_length=0,  # no limit
            min_decoding_length=options.min_new_tokens,
            max_decoding_length=options.max_new_tokens + len(prefix),
            suppress_sequences=[[name] for name in self._names(options.suppress_tokens)] or None,
            return_end_token=True,
        )
        hypotheses = [each.hypotheses[0][len(prefix) :] for each in found]
        return [[self._tokenizer.id(name) for name in names] for names in hypotheses]

    def _names(self, token_ids: Sequence[int]) -> list[str]:
        return [self._tokenizer.name(i) for i in token_ids]
