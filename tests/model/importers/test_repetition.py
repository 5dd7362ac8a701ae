"""A checkpoint with a repetition penalty decodes as `generate` does."""

import json

import pytest
import torch
from typer.testing import CliRunner

from model.__main__ import app as commands
from model.importers.probes import probes
from tests.conftest import opened
from tests.model.importers.t5_checkpoints import write_flan

OPTIONS = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_length": 6, "max_length": 24}
TEXTS = probes()[:40]


@pytest.mark.long
def test_decoding_without_options_is_what_generate_does(tmp_path):
    folder, bundle = tmp_path / "checkpoint", tmp_path / "bundle"
    folder.mkdir()
    theirs = write_flan(folder)
    theirs.generation_config.update(**OPTIONS)
    theirs.generation_config.save_pretrained(folder)
    done = CliRunner().invoke(commands, ["convert", str(folder), str(bundle), "--precision=fp32"])
    assert done.exit_code == 0, done.output
    decoding = json.loads((bundle / "bundle.json").read_text())["decoding"]
    assert decoding["repetition_penalty"] == 1.3
    with opened(bundle, precision="fp32") as client:
        sources = client.post("/v1/tokenize", json={"text": TEXTS}).json()["results"]
        for beam_size in (1, 4):
            body = {"source": TEXTS} if beam_size == 1 else {"source": TEXTS, "beam_size": 4}
            results = client.post("/v1/decode", json=body).json()["results"]
            for source, result in zip(sources, results, strict=True):
                ids = torch.tensor([source["token_ids"]])
                (expected,) = theirs.generate(ids, num_beams=beam_size).tolist()
                assert result["hypotheses"][0]["token_ids"] == expected[1:]
