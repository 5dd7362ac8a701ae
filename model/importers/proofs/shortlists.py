"""Count what shortlists keep of the targets that decoding with all tokens writes."""

from model.export.checks.samples import IdPairs
from model.importers.proofs.proof import Proof
from model.usage import Shortlists


def count_listed(shortlists: Shortlists, pairs: IdPairs, start: int) -> Proof:
    """Say how many tokens, and how many whole targets, the shortlists of their sources hold.
    `pairs` are sources and what the decoder reads of targets, which begin with `start` ids.

    This is counted, not judged: shortlists are a choice of whoever made the model.
    """
    found = [
        [each in listed for each in target[start:]]
        for source, target in pairs
        for listed in [shortlists.of(source)]
    ]
    tokens, held = sum(map(len, found)), sum(map(sum, found))
    whole = sum(map(all, found))
    result = (
        f"{held} of {tokens} tokens are on the shortlists of their sources,"
        f" all those of {whole} of {len(found)} texts"
    )
    return Proof("shortlists", "decoding with all tokens", result, None, "counted")
