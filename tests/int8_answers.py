"""python -m tests.int8_answers: print as JSON what int8 computes on the CPU it runs on."""

import json
import sys

import numpy as np

from service.bundle import load_bundle
from service.engine.engine import Engine
from service.engine.messages import Entry
from service.runtime.providers import LARGEST, PRODUCT, open_graph, products_saturate
from service.search.options import SearchOptions
from service.settings import DEFAULT_BUNDLE, Precision, Provider, Settings
from service.tokenizer import open_tokenizers

WORDS = ["heed", "attention", "transformer", "naive", "through", "psychology", "o'clock", "banana"]


def largest_product() -> int:
    """Return the product that saturates in 16 bits, computed as the service's graphs are."""
    session = open_graph(PRODUCT, "CPUExecutionProvider")
    (product,) = session.run(None, {"rows": LARGEST})
    return int(product[0, 0])


def pronounce(words: list[str]) -> list[tuple[str, float]]:
    """Return text and log-prob of each word's greedy answer, after the self-check at start."""
    bundle = load_bundle(DEFAULT_BUNDLE)
    source, target = open_tokenizers(bundle)
    settings = Settings(provider=Provider.cpu, precision=Precision.int8, threads=1)
    engine = Engine(bundle, settings)
    engine.start()
    options = SearchOptions(max_new_tokens=30)
    entries = [Entry(np.array(source.encode(word, "/").ids), options) for word in words]
    engine.queue.put(entries)
    best = [entry.result.result().hypotheses[0] for entry in entries]
    engine.close()
    return [(target.decode(each.token_ids).text, sum(each.log_probs)) for each in best]


if __name__ == "__main__":
    sys.stdout.write(
        json.dumps(
            {
                "saturates": products_saturate(),
                "product": largest_product(),
                "words": pronounce(WORDS),
            }
        )
    )
