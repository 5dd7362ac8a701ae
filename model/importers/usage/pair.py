"""Find the languages of an OPUS-MT that translates from one into one other. No id tells it which:
they are for those who choose a model."""

import re
from collections.abc import Iterator

from model.importers.checkpoint import Checkpoint
from model.importers.folders import name_of
from model.importers.readme import read_front_matter, read_readme, texts_of

CODE = re.compile(r"[a-z]{2,3}(_[A-Z][A-Za-z]+)?")
NAME = re.compile(r"opus-mt-(?:tc-(?:base|big)-)?([^-/]+)-([^-/@]+)")
FIREFOX = re.compile(r"model\.([a-z]{2})([a-z]{2})\.")  # how weights are called
LINE = r"^[\s*-]*{} language(?:s|\(s\))?: *(\S+) *$"  # of OPUS-MT's README.md, after its head
GROUPS = (  # codes of families of languages (ISO 639-5), and mul, of many
    "aav afa alg alv apa aqa aql art ath auf aus awd azc bad bai bat ber bih bnt btk cai cau"
    " cba ccn ccs cdc cdd cel cmc cpe cpf cpp crp csu cus day dmn dra egx esx euq fiu fox gem"
    " gme gmq gmw grk hmx hok hyx iir ijo inc ine ira iro itc jpx kar kdo khi kro map mkh mno"
    " mul mun myn nah nai ngf nic nub omq omv oto paa phi plf poz pqe pqw pra qwe roa sai sal"
    " sdv sem sgn sio sit sla smi son sqj ssa syd tai tbq trk tup tut tuw urj wak wen xgn xnd"
    " ypk zhx zle zls zlw znd"
)
FAMILIES = frozenset(GROUPS.split())


def find_pair(checkpoint: Checkpoint) -> tuple[str, str] | None:
    """Return the source and the target language in the surest of the files that name them.

    The head of README.md lists languages in any order, so it only confirms: a pair that lacks one
    of them is not the model's, or it is spelled in another way. None if no pair is left.
    """
    listed = {*texts_of(read_front_matter(checkpoint.folder).get("language"))}
    named = (pair for pair in named_pairs(checkpoint) if listed <= {*pair})
    return next((pair for pair in named if pair[0] != pair[1] and all(map(is_one, pair))), None)


def named_pairs(checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    """Yield what the files say, the surest first; what they lack is ""."""
    config = checkpoint.optional_json("tokenizer_config.json")
    yield str(config.get("source_lang", "")), str(config.get("target_lang", ""))
    text = read_readme(checkpoint.folder)
    source, target = (
        re.search(LINE.format(side), text, re.MULTILINE) for side in ("source", "target")
    )
    if source and target:
        yield source[1], target[1]
    for name in (str(checkpoint.config.get("_name_or_path", "")), name_of(checkpoint.folder)):
        if found := NAME.search(name):
            yield found[1], found[2]
    if checkpoint.is_marian:
        yield from named_weights(checkpoint)


def named_weights(checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    """Yield the languages in the names of files of Firefox's models."""
    for path in checkpoint.folder.glob("model.*"):
        if found := FIREFOX.match(path.name):
            yield found[1], found[2]


def is_one(code: str) -> bool:
    """Return whether a code is of one language, in contrast to ROMANCE, fr+es or zle."""
    return CODE.fullmatch(code) is not None and code not in FAMILIES
