"""Tokens that the files of a fine-tune add are read, written and served under the files' ids."""

import json
import shutil

import pytest
import transformers

from model.importers.checkpoint import Checkpoint
from model.importers.proofs.tokenizers import reference_of, typed_texts
from model.importers.tokenizers.compare import compare_pieces
from model.importers.vocabularies import read_vocabularies
from model.network.config import InputError
from tests.model.importers.checkpoints import change
from tests.model.importers.conftest import serve
from tests.model.importers.kinds import WRITERS, every_language

CLASSES = {
    "t5": "T5Tokenizer",
    "bart": "BartTokenizer",
    "nllb": "NllbTokenizer",
    "mbart50": "MBart50Tokenizer",
    "pegasus": "PegasusTokenizer",
    "m2m100": "M2M100Tokenizer",
    "marian": "MarianTokenizer",
    "plbart": "PLBartTokenizer",
    "blenderbot": "BlenderbotTokenizer",
}
# Whose classes join the text of tokens with spaces of their own
SLOW = ("m2m100", "marian", "plbart")
ADDED = {
    "\u27e6": False,
    "\n": False,
    "\u0253": False,
    "<sep>": True,
    "<hl>": True,
}  # special or not
TEXTS = ("\u27e6a\u27e6", "a\nb", "\u0253a\u0253", "a<sep>b", "<hl>a<hl>b", "\u27e6<sep>\n")
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")


def write(kind, folder):
    """Write a checkpoint with rows for more tokens, and return the class of its tokenizer."""
    languages = {"languages": every_language(kind)} if kind in ("nllb", "m2m100", "mbart50") else {}
    WRITERS[kind](folder, extra_rows=256, **languages)
    stored = folder / "tokenizer.json"
    if stored.is_file():  # it lists languages, without the flags that Hugging Face needs
        listed = json.loads(stored.read_text())["added_tokens"]
        in_decoder(folder, {each["content"]: each["id"] for each in listed})
        stored.unlink()
    special = folder / "special_tokens_map.json"
    if special.is_file():  # it lists languages without their ids
        first = len(json.loads((folder / "vocab.json").read_text()))
        names = json.loads(special.read_text())["additional_special_tokens"]
        in_decoder(folder, {name: i for i, name in enumerate(names, first)})
    return getattr(transformers, CLASSES[kind])


def in_decoder(folder, ids, **flags):
    options = folder / "tokenizer_config.json"
    before = json.loads(options.read_text()) if options.is_file() else {}
    tokens = {
        str(i): {"content": name, "special": ADDED.get(name, True), "normalized": False} | flags
        for name, i in ids.items()
    }
    listed = before.get("added_tokens_decoder", {}) | tokens
    change(folder, options.name, added_tokens_decoder=listed)


def in_added_tokens(folder, ids):
    """List tokens as transformers 4 did; what is special is in another file."""
    options, special = folder / "tokenizer_config.json", folder / "special_tokens_map.json"
    content = json.loads(options.read_text()) if options.is_file() else {}
    decoder = content.pop("added_tokens_decoder", {})
    options.write_text(json.dumps(content))
    others = {each["content"]: int(i) for i, each in decoder.items()}
    change(folder, "added_tokens.json", **others | ids)
    listed = json.loads(special.read_text()) if special.is_file() else {}
    names = [*listed.get("additional_special_tokens", []), *others]
    names += [name for name in ids if ADDED.get(name, True)]
    change(folder, special.name, additional_special_tokens=[*dict.fromkeys(names)])


@pytest.fixture(scope="module", params=CLASSES)
def plain(request, tmp_path_factory):
    """A kind of checkpoint, its folder, and how many tokens its tokenizer has."""
    folder = tmp_path_factory.mktemp(request.param)
    theirs = write(request.param, folder).from_pretrained(folder)
    if request.param == "nllb":  # or it would follow what is added
        in_decoder(folder, {"<mask>": theirs.convert_tokens_to_ids("<mask>")})
    return request.param, folder, len(theirs)


@pytest.fixture
def copied(plain, tmp_path):
    """The kind, a copy of the folder, and how many tokens its tokenizer has."""
    kind, folder, first = plain
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return kind, tmp_path, first


@pytest.fixture(params=[in_decoder, in_added_tokens])
def checkpoint(request, copied):
    """The kind, a folder with added tokens, and their ids."""
    kind, folder, first = copied
    # Hugging Face of today normalizes a new line of added_tokens.json to a space
    names = [name for name in ADDED if request.param is in_decoder or name.strip()]
    ids = {name: i for i, name in enumerate(names, first)}
    request.param(folder, ids)
    return kind, folder, ids


def test_added_tokens_are_read_and_written_as_by_hugging_face(checkpoint):
    kind, folder, ids = checkpoint
    theirs = getattr(transformers, CLASSES[kind]).from_pretrained(folder)
    assert theirs.convert_tokens_to_ids([*ids]) == [*ids.values()]
    vocabularies = read_vocabularies(Checkpoint(folder))
    served = serve(vocabularies.source.converted)
    for text in (text for text in TEXTS if "\n" in ids or "\n" not in text):
        expected = theirs(text, add_special_tokens=False).input_ids
        assert served.encode(text, "/").ids == expected
        assert set(ids.values()) & set(expected)
        if kind not in SLOW:
            assert served.decode(expected).text == theirs.decode(expected)
    target = serve(vocabularies.target.converted)
    assert [target.decode([i]).text for i in ids.values()] == [*ids]
    assert [target.name(i) for i in ids.values()] == [*ids]
    assert_proved(vocabularies.target)


def assert_proved(side):
    """Compare texts with the added tokens with the original between them, as the proof does."""
    texts = [*typed_texts(side)]
    assert texts
    assert compare_pieces(side.converted, reference_of(side)[1], texts) == []


@pytest.mark.parametrize(("hole", "list_tokens"), [(1, in_decoder), (7, in_added_tokens)])
def test_ids_without_a_name_move_no_token(copied, list_tokens, hole):
    """Hugging Face's class of today gives the next free id, which is another row."""
    kind, folder, first = copied
    ids = {"\u0253": first + hole, "<sep>": first + 3 * hole}
    if language := {"nllb": "tyv_Cyrl", "mbart50": "sah_RU", "m2m100": "__tyv__"}.get(kind):
        ids[language] = first + 3 * hole + 1
    list_tokens(folder, ids)
    vocabularies = read_vocabularies(Checkpoint(folder))
    served = serve(vocabularies.source.converted)
    assert served.encode("\u0253<sep>", "/").ids == [ids["\u0253"], ids["<sep>"]]
    assert served.decode([first, ids["\u0253"], first + 2 * hole]).text == "\u0253"
    if language:
        assert vocabularies.languages[language.strip("_")] == [ids[language]]
        assert ids[language] not in served.encode(f"a {language} b", "/").ids
    assert_proved(vocabularies.target)


FLAGS = ({}, {"lstrip": True}, {"rstrip": True}, {"single_word": True}, {"normalized": True})
SPACED = ("a <sep> b", "a<sep>b", "  <sep>  a", "<sep>", "a <sep>", "<sep><sep> a", "x<sep> y")


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_spaces_and_words_around_a_token_are_read_as_by_hugging_face(
    tmp_path, kind, special, flags
):
    theirs = write(kind, tmp_path)
    first = len(theirs.from_pretrained(tmp_path))
    in_decoder(tmp_path, {"<sep>": first}, special=special, **flags)
    theirs = theirs.from_pretrained(tmp_path)
    side = read_vocabularies(Checkpoint(tmp_path)).source
    served = serve(side.converted)
    for text in SPACED:
        expected = theirs(text, add_special_tokens=False).input_ids
        assert served.encode(text, "/").ids == expected
        assert (first in expected) == (
            not flags.get("single_word") or text not in ("a<sep>b", "x<sep> y")
        )
    assert_proved(side)


TYPED = ("</s>", "<s>", "<pad>", "<mask>", "<unk>", "<extra_id_0>", "fra_Latn", "<mask_1>")


@pytest.mark.parametrize("list_tokens", [in_decoder, in_added_tokens])
def test_tokens_that_mark_ends_gaps_and_languages_stay_text(copied, list_tokens):
    """Even if a file lists them, as all files of Hugging Face do."""
    kind, folder, _ = copied
    theirs = getattr(transformers, CLASSES[kind]).from_pretrained(folder)
    ids = {name: theirs.convert_tokens_to_ids(name) for name in TYPED if name in theirs.get_vocab()}
    list_tokens(folder, ids)
    side = read_vocabularies(Checkpoint(folder)).source
    served = serve(side.converted)
    assert len(ids) >= 3
    for name, i in ids.items():
        read = served.encode(f"a{name} b", "/").ids
        assert i == theirs.unk_token_id or i not in read
        assert served.name(i) == name
    assert not side.typed


@pytest.mark.parametrize("role", ["sep_token", "cls_token", "bos_token", "mask_token"])
def test_a_separator_with_a_role_is_read_and_an_end_is_text(tmp_path, role):
    """As `add_special_tokens({"sep_token": "[SEP]"})` names it."""
    first = len(write("t5", tmp_path).from_pretrained(tmp_path))
    change(tmp_path, "added_tokens.json", **{"[SEP]": first})
    change(tmp_path, "special_tokens_map.json", **{role: "[SEP]"})
    served = serve(read_vocabularies(Checkpoint(tmp_path)).source.converted)
    assert (first in served.encode("a[SEP]b", "/").ids) == (role in ("sep_token", "cls_token"))


@pytest.mark.parametrize("nested", [True, False])
def test_a_token_that_stands_around_texts_is_text(tmp_path, nested):
    _, ids = write_stored("t5", tmp_path, 0)
    stored = json.loads((tmp_path / "tokenizer.json").read_text())
    processor = {"type": "RobertaProcessing", "sep": ["<sep>", ids["<sep>"]], "cls": ["<hl>", 1]}
    processor |= {"trim_offsets": True, "add_prefix_space": False}
    if nested:
        processor = {"type": "Sequence", "processors": [processor]}
    change(tmp_path, "tokenizer.json", **stored | {"post_processor": processor})
    served = serve(read_vocabularies(Checkpoint(tmp_path)).source.converted)
    assert not {ids["<sep>"], ids["<hl>"]} & {*served.encode("a<sep>b<hl>c", "/").ids}
    assert ids["<more>"] in served.encode("a<more>b", "/").ids


def write_stored(kind, folder, hole):
    """Write a folder that has its tokens in tokenizer.json alone, with a hole in the ids, and one
    more token in another file. Return the tokenizer as saved, and the ids."""
    theirs = write(kind, folder).from_pretrained(folder)
    theirs.save_pretrained(folder)
    for name in ("spiece.model", "sentencepiece.bpe.model", "vocab.json", "merges.txt"):
        (folder / name).unlink(missing_ok=True)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    first = len(theirs) + hole
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    ids = {name: i for i, name in enumerate(ADDED, first)}
    content["added_tokens"] += [
        {"id": i, "content": name, "special": ADDED[name], **flags} for name, i in ids.items()
    ]
    path.write_text(json.dumps(content))
    ids["<more>"] = first + 10
    change(folder, "added_tokens.json", **{"<more>": first + 10})
    return theirs, ids


@pytest.mark.parametrize("hole", [0, 3])
@pytest.mark.parametrize("kind", ["t5", "bart", "nllb"])
def test_a_tokenizer_json_has_the_tokens_of_all_files(tmp_path, kind, hole):
    theirs, ids = write_stored(kind, tmp_path, hole)
    side = read_vocabularies(Checkpoint(tmp_path)).source
    served = serve(side.converted)
    for text in ("the weather", "a"):
        assert served.encode(text, "/").ids == theirs(text, add_special_tokens=False).input_ids
    for name, i in ids.items():
        assert i in served.encode(f"a{name}b", "/").ids
        assert served.decode([i]).text == name
    assert served.decode([ids["<more>"] - 1]).text == ""
    assert_proved(side)


@pytest.mark.parametrize("kind", ["t5", "pegasus", "mbart50", "nllb"])
def test_an_unknown_letter_is_written_as_by_hugging_face_whatever_the_file(tmp_path, kind):
    theirs = write(kind, tmp_path).from_pretrained(tmp_path)
    text = "a \N{OLD PERSIAN SIGN A} b"
    ids = theirs(text, add_special_tokens=False).input_ids
    assert theirs.unk_token_id in ids
    expected = theirs.decode(ids)
    written = [serve(read_vocabularies(Checkpoint(tmp_path)).target.converted).decode(ids).text]
    theirs.save_pretrained(tmp_path)
    for name in ("spiece.model", "sentencepiece.bpe.model"):
        (tmp_path / name).unlink(missing_ok=True)
    written += [serve(read_vocabularies(Checkpoint(tmp_path)).target.converted).decode(ids).text]
    assert written == [expected, expected]


@pytest.mark.parametrize(
    ("file", "wrong"),
    [
        ("tokenizer_config.json", {"added_tokens_decoder": {"5": "<sep>", "x": {"content": "a"}}}),
        ("tokenizer_config.json", {"extra_special_tokens": 1.5}),
        ("special_tokens_map.json", {"additional_special_tokens": "<sep>"}),
        ("added_tokens.json", {"<sep>": "five"}),
        ("tokenizer.json", {"added_tokens": [{"content": "<sep>"}]}),
        ("tokenizer.json", {"added_tokens": 5}),
    ],
)
def test_a_file_whose_tokens_are_none_is_named(copied, file, wrong):
    _, folder, _ = copied
    change(folder, file, **wrong)
    with pytest.raises(InputError, match=f"{file} lists the token .*: give each its text and"):
        read_vocabularies(Checkpoint(folder))


@pytest.mark.parametrize(
    "processor", [{"cls": 5}, {"sep": [["</s>"]]}, {"special_tokens": 5}, {"processors": 5}]
)
def test_a_post_processor_that_is_none_is_named(tmp_path, processor):
    write("bart", tmp_path)
    change(tmp_path, "tokenizer.json", post_processor=processor)
    with pytest.raises(InputError, match=r"tokenizer\.json has a post_processor of another form"):
        read_vocabularies(Checkpoint(tmp_path))


@pytest.mark.parametrize("stored", [True, False])
def test_a_mask_beyond_the_embedding_is_left_out(tmp_path, stored):
    """As in bart-large-cnn."""
    theirs = write("bart", tmp_path)
    vocabulary = json.loads((tmp_path / "vocab.json").read_text())
    rows = len(vocabulary)
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary | {"<mask_9>": rows}))
    change(tmp_path, "config.json", vocab_size=rows)
    if stored:
        theirs.from_pretrained(tmp_path).save_pretrained(tmp_path)
        (tmp_path / "vocab.json").unlink(missing_ok=True)
    tokenizer = read_vocabularies(Checkpoint(tmp_path)).source.tokenizer
    assert tokenizer.get_vocab_size() == rows
    assert max(tokenizer.encode("a<mask_9>b").ids) < rows
