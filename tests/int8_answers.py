"""python -m tests.int8_answers BUNDLE SOURCES: print as JSON what int8 computes on this CPU.

SOURCES is a JSON file with a list of texts.
"""

import json
import sys
from pathlib import Path

import numpy as np

from service.bundle.languages import fill
from service.bundle.manifest import load_bundle
from service.engine.engine import Engine
from service.engine.scheduler import Job
from service.runtime.providers import LARGEST_ROWS, PRODUCT, open_graph, products_saturate
from service.search.options import SearchOptions
from service.settings.settings import Precision, Provider, Settings
from service.text.opening import open_tokenizers
from service.wire import Entry


def largest_product() -> int:
    """Return the product that saturates in 16 bits, computed as the service's graphs are."""
    session = open_graph(PRODUCT, "CPUExecutionProvider")
    (product,) = session.run(None, {"rows": LARGEST_ROWS})
    return int(product[0, 0])


def decode(bundle_folder: Path, texts: list[str]) -> list[tuple[str, float]]:
    """Return text and log-prob of each greedy answer, after the self-check at start.

    A target language that stands in the source is the model's first.
    """
    bundle = load_bundle(bundle_folder)
    manifest = bundle.manifest
    source, target = open_tokenizers(bundle)
    first = {"target_language": next(iter(manifest.languages.target.values()), [])}
    source = source.between(
        fill(manifest.source_prefix, first), fill(manifest.source_suffix, first)
    )
    settings = Settings(provider=Provider.cpu, precision=Precision.int8, threads=1)
    engine = Engine(bundle, settings)
    engine.start()
    options = SearchOptions(max_new_tokens=60)
    jobs = [Job(Entry(np.array(source.encode(text, "/").ids), options)) for text in texts]
    engine.queue.put(jobs)
    best = [job.result.result().hypotheses[0] for job in jobs]
    engine.close()
    return [(target.decode(each.token_ids).text, sum(each.log_probs)) for each in best]


if __name__ == "__main__":
    bundle, sources = map(Path, sys.argv[1:])
    answers = decode(bundle, json.loads(sources.read_text(encoding="utf-8")))
    found = {"saturates": products_saturate(), "product": largest_product(), "answers": answers}
    sys.stdout.write(json.dumps(found))
