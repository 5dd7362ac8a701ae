"""The section of docs/performance.md on how often int8 decodes what fp32 does."""

from collections.abc import Sequence

from benchmarks.kit.document import machine_line, table
from benchmarks.kit.results import Agreement, Alike

AGREEMENT = """
## int8 compared with fp32

`python -m benchmarks.speed.agreement` writes this section. It decodes texts that the models have
not learned from, and counts those for which int8 gives the same tokens as fp32: once in Heed and
once in CTranslate2, which converts the same Hugging Face checkpoint itself and reads the same
source ids. `fp32 of both` is a control: the texts that Heed at fp32 and CTranslate2 at float32
decode alike. It is 100 % if both compute the same model. Both search with the model's limit and
banned tokens, a length penalty of 1 and early stopping.

`marian`, `t5`, `bart` and `pegasus` are small models that `python -m examples.ledger` trains, the
last two with `--epochs 2`. They are converted with `--texts`: lines of texts.tsv, which are neither
learned nor counted. Their texts are its held-out lines, into French for Marian. `g2p-en` is the
default model, on its held-out words; CTranslate2 cannot compute its positions. The rows of `t5`,
`bart` and `pegasus` were measured before products could be wide and GPTQ rounded weights, with a
limit twice as high ([ADR 6](adr/0006-int8-by-calibration.md)); `marian` has been measured since.
`g2p-en` needs neither.
"""
FAMILY = ["family", "texts"]
SEARCH = ["Heed", "CTranslate2", "fp32 of both"]


def render_agreement(found: Sequence[Agreement]) -> str:
    """Return the section, with a table for each machine."""
    text = AGREEMENT
    for machine in dict.fromkeys(machine_line(each["machine"]) for each in found):
        rows = [each for each in found if machine_line(each["machine"]) == machine]
        columns = [*FAMILY]
        for search in rows[0]["searches"]:
            named = "greedy" if search["beam_size"] == 1 else f"{search['beam_size']} beams"
            columns += [f"{named}: {column}" for column in SEARCH]
        lines = table(columns, [agreement_columns(each) for each in rows])
        text += f"\n{machine}\n\n{lines}"
    return text


def agreement_columns(found: Agreement) -> list[str]:
    texts = found["texts"]
    shares = (share for search in found["searches"] for share in search_columns(search, texts))
    return [found["family"], f"{texts:,}", *shares]


def search_columns(found: Alike, texts: int) -> list[str]:
    counts = found["heed"], found.get("ctranslate2"), found.get("control")
    return ["" if count is None else f"{count / texts:.1%}" for count in counts]
