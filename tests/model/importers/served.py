"""Convert a checkpoint, serve the bundle, and compare its answers with Hugging Face's model."""

import json

import numpy as np
import torch
from typer.testing import CliRunner

from model.__main__ import app as commands

KINDS = ("encoder", "decoder", "cross")
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def run(*arguments):
    return CliRunner().invoke(commands, ["convert", *map(str, arguments)])


def convert(folder, precision="fp32", *options):
    """Return the bundle of a checkpoint, which lies next to it."""
    bundle = folder.parent / "bundle"
    done = run(folder, bundle, "--precision", precision, *options)
    assert done.exit_code == 0, done.output
    return bundle


def refusal(folder, bundle, *options):
    """Return the one sentence that refuses to convert a folder."""
    done = run(folder, bundle, *options)
    assert done.exit_code == 2
    assert done.stdout == ""
    (sentence,) = (line for line in done.stderr.splitlines() if line.startswith("heed: "))
    return sentence


def post(client, path, **body):
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


def start_of(bundle, languages):
    """Return the ids that the decoder reads first."""
    manifest = json.loads((bundle / "bundle.json").read_text())
    codes = manifest["languages"]["target"]
    start = [
        codes[languages[each]] if isinstance(each, str) else [each]
        for each in manifest["decoder_start"]
    ]
    return [token_id for ids in start for token_id in ids]


@torch.no_grad()
def reference(theirs, source, start, target):
    """Return the log-probs (T, V) of Hugging Face's model for each token of the target, and its
    weights (layers, heads, queries, keys) by kind, with the queries that predict those tokens."""
    found = theirs(
        input_ids=torch.tensor([source]),
        decoder_input_ids=torch.tensor([[*start, *target[:-1]]]),
        output_attentions=True,
    )
    first = len(start) - 1
    weights = {
        "encoder": torch.cat(found.encoder_attentions),
        "decoder": torch.cat(found.decoder_attentions)[:, :, first:],
        "cross": torch.cat(found.cross_attentions)[:, :, first:],
    }
    return found.logits[0, first:], weights


def assert_same_answers(client, theirs, pairs, bundle, languages, banned=(), **fields):
    """Compare the log-prob of every token and every weight of pairs of ids. Tokens in `banned` are
    never generated, and the others share their probability. `fields` are sent as well."""
    start = start_of(bundle, languages)
    theirs.set_attn_implementation("eager")  # the only one that gives weights
    sources, targets = map(list, zip(*pairs, strict=True))
    read = json.loads((bundle / "bundle.json").read_text())["decoder_start"]
    sent = {slot: code for slot, code in languages.items() if slot in read}  # ids hold the others
    body = {"source": sources, "target": targets, **sent, **fields}
    scored = post(client, "/v1/score", **body)
    shown = post(client, "/v1/attention", **body, attention={"kinds": list(KINDS)})
    for source, target, score, attention in zip(sources, targets, scored, shown, strict=True):
        logits, weights = reference(theirs, source, start, target)
        logits[:, list(banned)] = -torch.inf
        expected = logits.log_softmax(-1)[torch.arange(len(target)), target]
        np.testing.assert_allclose(score["log_probs"], expected.numpy(), **TOLERANCE)
        assert [block["kind"] for block in attention["attention"]] == list(KINDS)
        for block in attention["attention"]:
            np.testing.assert_allclose(
                block["data"], weights[block["kind"]].numpy(), **TOLERANCE, err_msg=block["kind"]
            )


def check_places(text, tokens):
    end = 0
    for token in tokens:
        assert end <= token.start <= token.end
        assert not text[end : token.start].strip()
        end = token.end
    assert not text[end:].strip()
