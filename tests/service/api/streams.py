"""Server-sent events as clients read them."""

import json


def events_of(text):
    """Return [(name, data)] without comments."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line[:1] != ":")
        if fields:
            assert fields.keys() == {"event", "data"}
            found.append((fields["event"], json.loads(fields["data"])))
    return found
