"""Folders of models of Marian: random weights under Marian's names, in its two containers."""

import io
import random
import struct
import unicodedata
import zipfile

import numpy as np
import sentencepiece

from model.importers.files.shortlist_file import MAGIC as SHORTLIST_MAGIC
from model.importers.tokenizers.probes import WORDS

PIECES = 320
TEXT = 0x101
FP32, INT8 = 0x404, 0x4101
OPTIONS = {
    "type": "transformer",
    "version": "v1.9.56 94aeaa46",
    "dim-emb": 32,
    "dim-vocabs": [PIECES, PIECES],
    "dim-rnn": 1024,
    "enc-depth": 2,
    "dec-depth": 2,
    "transformer-heads": 2,
    "transformer-dim-ffn": 48,
    "transformer-ffn-depth": 2,
    "transformer-ffn-activation": "relu",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    "transformer-decoder-autoreg": "self-attention",
    "transformer-tied-layers": [],
    "transformer-guided-alignment-layer": "last",
    "tied-embeddings": False,
    "tied-embeddings-src": False,
    "tied-embeddings-all": True,
    "output-omit-bias": False,
    "input-types": [],
    "lemma-dim-emb": 0,
}
_trained: dict[int, bytes] = {}


def pieces(size=PIECES):
    """Return a sentencepiece model as Marian trains it: </s> is 0, <unk> is 1, nothing else."""
    if size not in _trained:
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences()),
            model_writer=model,
            vocab_size=size,
            character_coverage=1.0,
            hard_vocab_limit=True,
            bos_id=-1,
            eos_id=0,
            unk_id=1,
            minloglevel=2,
        )
        _trained[size] = model.getvalue()
    return _trained[size]


def sentences():
    """Return texts of English words, the names of characters, and of accented ones."""
    chance = random.Random(0)
    names = [unicodedata.name(chr(code), "").lower() for code in range(0x21, 0x500)]
    names += WORDS["French"].split() * 9
    return [" ".join(chance.choices(names, k=7)) for _ in range(300)]


def names_of(model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]


def yaml_of(options):
    def shown(value):
        if isinstance(value, list):
            return "".join(f"\n  - {each}" for each in value) or "[]"
        return str(value).lower() if isinstance(value, bool) else value if value != "" else '""'

    return "".join(f"{name}: {shown(value)}\n" for name, value in options.items())


def shapes_of(options):
    """Return the shape of each tensor that a model with these options has."""
    shapes = embedding_shapes(options)
    for side, depth in (("encoder", options["enc-depth"]), ("decoder", options["dec-depth"])):
        for layer in range(1, depth + 1):
            shapes |= layer_shapes(options, side, f"{side}_l{layer}_")
        for place, ending in (("emb", "_pre"), ("top", "")):
            if "n" in options[f"transformer-postprocess-{place}"]:
                shapes |= norm_shapes(options, f"{side}_{place}", ending)
    return shapes


def embedding_shapes(options):
    width, (source, target) = options["dim-emb"], options["dim-vocabs"]
    everything, shared = options["tied-embeddings-all"], options["tied-embeddings-src"]
    shapes = {} if options["output-omit-bias"] else {"decoder_ff_logit_out_b": (1, target)}
    if everything or shared:
        shapes["Wemb"] = (source, width)
    else:
        shapes |= {"encoder_Wemb": (source, width), "decoder_Wemb": (target, width)}
    if not (everything or options["tied-embeddings"]):
        shapes["decoder_ff_logit_out_W"] = (width, target)
    return shapes


def layer_shapes(options, side, start):
    width, inner = options["dim-emb"], options["transformer-dim-ffn"]
    before = "n" in options["transformer-preprocess"]
    ending = "_pre" if before else ""
    kinds = ["self"] if side == "encoder" else ["self", "context"]
    shapes = {}
    if side == "decoder" and options["transformer-decoder-autoreg"] == "rnn":
        kinds.remove("self")
        shapes |= {f"{start}rnn_{name}": (width, width) for name in ("W", "Wf")}
        shapes[f"{start}rnn_bf"] = (1, width)
        shapes |= norm_shapes(options, f"{start}rnn{'' if before else '_ffn'}", ending)
    for kind in kinds:
        for letter in "qkvo":
            shapes[f"{start}{kind}_W{letter}"] = (width, width)
            shapes[f"{start}{kind}_b{letter}"] = (1, width)
        shapes |= norm_shapes(options, f"{start}{kind}_Wo", ending)
    shapes |= {f"{start}ffn_W1": (width, inner), f"{start}ffn_b1": (1, inner)}
    shapes |= {f"{start}ffn_W2": (inner, width), f"{start}ffn_b2": (1, width)}
    return shapes | norm_shapes(options, f"{start}ffn_ffn", ending)


def norm_shapes(options, place, ending):
    return {f"{place}_ln_{part}{ending}": (1, options["dim-emb"]) for part in ("scale", "bias")}


def random_tensors(options, seed=0):
    """Weights that make texts end after some tokens: </s> is likely, and <unk> is not."""
    chance = np.random.default_rng(seed)
    found = {}
    for name, shape in shapes_of(options).items():
        spread, mean = (0.3, 0.0) if "emb" not in name else (0.25, 0.0)
        if "ln_scale" in name:
            spread, mean = 0.3, 1.0
        found[name] = chance.normal(mean, spread, shape).astype(np.float32)
    if "decoder_ff_logit_out_b" in found:
        found["decoder_ff_logit_out_b"][0, 0] += 1.5
    return found


def write_npz(path, options, tensors, *, compressed=False):
    """Write a file as Marian does: its options are bytes with a NUL at their end."""
    text = np.frombuffer(yaml_of(options).encode() + b"\0", np.int8)
    save = np.savez_compressed if compressed else np.savez
    save(path, **tensors, **{"special:model.yml": text})


def quantised(matrix):
    """Return int8 numbers, and what they are divided by."""
    scale = np.float32(127 / np.abs(matrix).max())
    return np.clip(np.round(matrix * scale), -127, 127).astype(np.int8), scale


def is_int8(name, tensor):
    return tensor.shape[0] > 1 and "ln" not in name


def rounded(tensors):
    """Return what a file in 8 bits holds of tensors."""
    found = dict(tensors)
    for name, tensor in tensors.items():
        if is_int8(name, tensor):
            units, scale = quantised(tensor)
            found[name] = units.astype(np.float32) / scale
    return found


def items_of(options, tensors, int8):
    """Yield name, type, shape and data of each item of a binary file."""
    for name, tensor in sorted(tensors.items()):
        if int8 and is_int8(name, tensor):
            units, scale = quantised(tensor)
            stored = units if "Wemb" in name else units.T
            yield name, INT8, tensor.shape, padded(stored.tobytes() + struct.pack("<f", scale))
            yield f"{name}_QuantMultA", FP32, (1, 1), padded(struct.pack("<f", 12.5))
        else:
            yield name, FP32, tensor.shape, padded(tensor.tobytes())
    text = yaml_of(options).encode() + b"\0"
    yield "special:model.yml", TEXT, (len(text),), text


def padded(data):
    return data + bytes(-len(data) % 256)


def binary_of(items):
    items = list(items)
    content = struct.pack("<QQ", 1, len(items))  # of version 1
    for name, kind, shape, data in items:
        content += struct.pack("<4Q", len(name) + 1, kind, len(shape), len(data))
    content += b"".join(name.encode() + b"\0" for name, *_ in items)
    content += b"".join(struct.pack(f"<{len(shape)}i", *shape) for _, _, shape, _ in items)
    offset = -(len(content) + 8) % 256
    content += struct.pack("<Q", offset) + bytes(offset)
    return content + b"".join(data for *_, data in items)


def write_folder(folder, seed=0, container="npz", vocabulary="spm", tensors=None, **changes):
    """Write a whole folder; return its options and tensors. `container` is npz, fp32 or int8."""
    folder.mkdir(parents=True, exist_ok=True)
    options = OPTIONS | changes
    tensors = tensors or random_tensors(options, seed)
    sizes = options["dim-vocabs"]
    models = [pieces(size) for size in sizes]
    if vocabulary == "yml":
        for side, model in zip(("source", "target"), models, strict=True):
            (folder / f"{side}.spm").write_bytes(model)
        names = ["vocab"] if sizes[0] == sizes[1] else ["source.vocab", "target.vocab"]
        for name, model in zip(names, models, strict=False):
            lines = [f"{quoted(piece)}: {i}\n" for i, piece in enumerate(names_of(model))]
            (folder / f"{name}.yml").write_text("".join(lines))
    elif sizes[0] == sizes[1]:
        (folder / "vocab.enpt.spm").write_bytes(models[0])
    else:
        (folder / "srcvocab.enpt.spm").write_bytes(models[0])
        (folder / "trgvocab.enpt.spm").write_bytes(models[1])
    if container == "npz":
        write_npz(folder / "model.npz", options, tensors)
        return options, tensors
    int8 = container == "int8"
    content = binary_of(items_of(options, tensors, int8))
    (folder / f"model.enpt.{'intgemm.alphas' if int8 else 'fp32'}.bin").write_bytes(content)
    return options, rounded(tensors) if int8 else tensors


def quoted(text):
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def zip_folder(folder, path):
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.iterdir()):
            archive.write(file, f"opus/{file.name}")
    return path


def checksum(body):
    """Marian's hash of the numbers of 8 bytes in `body`; of 4 bytes at the end none is read."""
    seed = np.uint64(0)
    with np.errstate(over="ignore"):
        for number in np.frombuffer(body, "<u8", len(body) // 8):
            seed ^= number + np.uint64(0x9E3779B9) + (seed << np.uint64(6)) + (seed >> np.uint64(2))
    return int(seed)


def shortlist_file(
    lists, frequent=2, longest=50, magic=SHORTLIST_MAGIC, offsets=None, counts=None, hashed=None
):
    """Return Marian's binary shortlists of tokens of sources, unless it is to be damaged."""
    offsets = np.cumsum([0, *map(len, lists)]) if offsets is None else offsets
    ids = [each for listed in lists for each in listed]
    body = struct.pack("<4Q", frequent, longest, *(counts or (len(offsets), len(ids))))
    body += np.array(offsets, "<u8").tobytes() + np.array(ids, "<u4").tobytes()
    return struct.pack("<2Q", magic, checksum(body) if hashed is None else hashed) + body
