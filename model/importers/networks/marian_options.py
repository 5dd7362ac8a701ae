"""Read `special:model.yml`, the options of a model of Marian, and refuse those that no
configuration of ours expresses."""

import re
from dataclasses import dataclass
from typing import Any

from model.importers.checkpoint import MARIAN, Checkpoint
from model.network.config import Activation, InputError

NO, EMPTY = ("false",), ("",)
ALONE: dict[str, tuple[str, ...]] = {  # the only values that are read; Marian's default is one
    "type": ("transformer",),
    "transformer-ffn-depth": ("2",),
    "transformer-decoder-ffn-depth": ("0", "2"),
    "transformer-no-projection": NO,
    "transformer-rnn-projection": NO,
    "transformer-pool": NO,
    "transformer-train-position-embeddings": NO,
    "transformer-disable-position-embeddings": NO,
    "transformer-no-bias": NO,
    "transformer-no-affine": NO,
    "transformer-tied-layers": EMPTY,
    "transformer-attention-mask": ("default",),
    "right-left": NO,
    "ulr": NO,
    "lemma-dim-emb": ("0",),
    "lemma-dependency": EMPTY,
    "factors-combine": ("sum",),
    "factors-dim-emb": ("0",),
    "input-types": (*EMPTY, "sequence"),
}
READ = (
    "version",
    "dim-emb",
    "dim-vocabs",
    "enc-depth",
    "dec-depth",
    "transformer-heads",
    "transformer-dim-ffn",
    "transformer-decoder-dim-ffn",
    "transformer-ffn-activation",
    "transformer-preprocess",
    "transformer-postprocess",
    "transformer-postprocess-emb",
    "transformer-postprocess-top",
    "transformer-decoder-autoreg",
    "tied-embeddings",
    "tied-embeddings-src",
    "tied-embeddings-all",
    "output-omit-bias",
    "dec-cell",
    "layer-normalization",
    "transformer-guided-alignment-layer",
    "kind",
    "file",
)
OF_OTHER_NETWORKS = re.compile(  # or of training
    r"dim-rnn|enc-(cell|type)(-depth)?|dec-cell-\w+-depth|skip|special-vocab|separator-symbol"
    r"|(bert|ulr|transformer-aan|transformer-alibi)-.*|transformer-dim-aan"
    r"|transformer-depth-scaling"
)
HARMLESS = (*EMPTY, *NO, "0", "null", "~", "none")
NUMBER = re.compile(r"[0-9]{1,9}")
ACTIVATIONS = {"relu": Activation.relu, "swish": Activation.silu, "gelu": Activation.gelu}
SWISH_GELU = (1, 12, 0)  # the last version whose gelu is x sigmoid(1.702 x)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarianOptions:
    vocab_sizes: tuple[int, int]
    d_model: int
    d_ff: int
    num_heads: int
    num_encoder_layers: int
    num_decoder_layers: int
    norm_first: bool
    embedding_norm: bool
    final_norm: bool
    activation: Activation
    approximates: bool  # gelu by swish: x sigmoid(1.702 x)
    ssru: bool
    one_embedding: bool
    tied_output: bool
    output_bias: bool


def read_options(checkpoint: Checkpoint) -> MarianOptions:
    """Raise InputError naming an option whose value our network does not have."""
    options = Options(checkpoint)
    options.check()
    sizes = options.sizes("dim-vocabs")
    d_ff = options.size("transformer-dim-ffn")
    if options.text("transformer-decoder-dim-ffn", "0") not in ("0", str(d_ff)):
        raise options.refuse("transformer-decoder-dim-ffn", f"{d_ff}, that of the encoder")
    all_tied, sources_tied, output_tied = (
        options.flag(f"tied-embeddings{ending}") for ending in ("-all", "-src", "")
    )
    d_model, num_heads = options.size("dim-emb"), options.size("transformer-heads")
    if d_model % num_heads:
        raise options.refuse("transformer-heads", f"a divisor of dim-emb, {d_model}")
    function = options.one_of("transformer-ffn-activation", "swish", ACTIVATIONS)
    approximates = function == "gelu" and options.version <= SWISH_GELU
    return MarianOptions(
        vocab_sizes=sizes,
        d_model=d_model,
        d_ff=d_ff,
        num_heads=num_heads,
        num_encoder_layers=options.size("enc-depth"),
        num_decoder_layers=options.size("dec-depth"),
        norm_first=options.norm_first(),
        embedding_norm=options.has_norm("transformer-postprocess-emb"),
        final_norm=options.has_norm("transformer-postprocess-top"),
        activation=Activation.silu if approximates else ACTIVATIONS[function],
        approximates=approximates,
        ssru=options.is_ssru(),
        one_embedding=all_tied or sources_tied,
        tied_output=all_tied or output_tied,
        output_bias=not options.flag("output-omit-bias"),
    )


def guided_layer(checkpoint: Checkpoint) -> int:
    """Return the layer of the decoder, from 0, whose first head Marian guides to alignments in
    training, where it guides one: the options name the last one even where it did not."""
    options, name = Options(checkpoint), "transformer-guided-alignment-layer"
    layers, named = options.size("dec-depth"), options.text(name, "last")
    layer = layers if named == "last" else options.number(name, named)
    if layer > layers:
        raise options.refuse(name, f"last, or 1 to {layers}")
    return layer - 1


class Options:
    """The options by their names, with the values as texts."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._values: dict[str, Any] = checkpoint.config

    def check(self) -> None:
        """Raise InputError for a value that is not read, and for an unknown option."""
        for name, values in ALONE.items():
            if not {*self.texts(name, values[0])} <= {*values}:
                raise self.refuse(name, " or ".join(value or "nothing" for value in values))
        for name in self._values:
            known = name in ALONE or name in READ or OF_OTHER_NETWORKS.fullmatch(name)
            if not known and not {*self.texts(name, "")} <= {*HARMLESS}:
                raise self.refuse(name[:60], "no such option: Heed does not know it")

    def texts(self, name: str, default: str) -> list[str]:
        value = self._values.get(name, default)
        return value if isinstance(value, list) else [value]

    def text(self, name: str, default: str) -> str:
        value = self._values.get(name, default)
        if isinstance(value, list):
            raise self.refuse(name, "one value")
        return value

    def one_of(self, name: str, default: str, known: Any) -> str:
        value = self.text(name, default)
        if value not in known:
            raise self.refuse(name, " or ".join(known))
        return value

    def flag(self, name: str) -> bool:
        return self.one_of(name, "false", ("true", "false")) == "true"

    def size(self, name: str) -> int:
        return self.number(name, self.text(name, ""))

    def sizes(self, name: str) -> tuple[int, int]:
        values = self.texts(name, "")
        if len(values) != 2:
            raise self.refuse(name, "two sizes, of one source and one target")
        return self.number(name, values[0]), self.number(name, values[1])

    def number(self, name: str, value: str) -> int:
        if not NUMBER.fullmatch(value) or not int(value):
            raise self.refuse(name, "a whole number from 1")
        return int(value)

    def has_norm(self, name: str) -> bool:
        """Return whether a norm is at a place. A d stands for dropout, which changes no answer."""
        found = self.text(name, "").replace("d", "")
        if found not in ("", "n"):
            raise self.refuse(name, "n or nothing, with or without d")
        return found == "n"

    def norm_first(self) -> bool:
        """Return whether norms come before attention and feed-forward layers, or after what they
        add to (a) their input."""
        before, name = self.has_norm("transformer-preprocess"), "transformer-postprocess"
        after = "a" if before else "an"
        if self.text(name, "dan").replace("d", "") != after:
            raise self.refuse(name, f"d{after}, as there is {'a' if before else 'no'} norm before")
        return before

    def is_ssru(self) -> bool:
        """Return whether the decoder has SSRUs in place of self-attention."""
        kinds = ("self-attention", "rnn")
        if self.one_of("transformer-decoder-autoreg", kinds[0], kinds) == kinds[0]:
            return False
        self.one_of("dec-cell", "gru", ("ssru",))
        if self.flag("layer-normalization"):
            raise self.refuse("layer-normalization", "false")
        return True

    @property
    def version(self) -> tuple[int, ...]:
        """The version of Marian that wrote the file; the oldest if it does not say."""
        found = re.match(r"v?([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4})", self.text("version", ""))
        return tuple(int(part) for part in found.groups()) if found else (0,)

    def refuse(self, name: str, expected: str) -> InputError:
        value = self._values.get(name)
        said = "lacks" if value is None else "has"
        shown = "" if value is None else f" {str(value)[:60]!r}"
        return InputError(
            f"{self._checkpoint.folder}: {MARIAN} {said} {name}{shown}; expected {expected}"
        )
