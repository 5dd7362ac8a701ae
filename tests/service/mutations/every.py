"""Every way to damage a bundle: name -> a function that changes the copy in a folder.

SEALED and GREEDY are those after which bundle.json gets the sizes and hashes of the damaged files.
"""

from functools import partial

from tests.service.mutations.graphs import GRAPH_FILES, edit_graph, endless_loop, large_tensor
from tests.service.mutations.manifests import FILES, MANIFESTS
from tests.service.mutations.references import PARITIES
from tests.service.mutations.tokenizers import TOKENIZERS, charsmap, tokenizer
from tests.service.mutations.weights import WEIGHT_FILES

# Those that take time or memory, or end the process that opens them
GREEDY = {
    "an endless Loop": partial(edit_graph, "encoder", endless_loop(10**12)),
    "a tensor of 4 GB": partial(edit_graph, "encoder", large_tensor(1 << 30)),
    "a charsmap of 8 GB": tokenizer("normalizer", charsmap(b"\xff" * 4)),
}
SEALED = {**WEIGHT_FILES, **GRAPH_FILES, **TOKENIZERS, **PARITIES}
RAW = {**MANIFESTS, **FILES}
