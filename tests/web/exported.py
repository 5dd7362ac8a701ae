"""Exported files of attention."""

from service.formats.html import to_html


def token(text, start=0):
    return {"text": text, "id": 9, "start": start, "end": None if start is None else start + 1}


def exported(weights, columns, rows=None):
    """Return the file of one mean over heads, (T, S); its rows have names if none are given."""
    block = {
        "kind": "cross",
        "layers": [0],
        "heads": [0, 1],
        "reduce_heads": "mean",
        "axes": ["layer", "target", "source"],
        "shape": [1, *weights.shape],
        "rows": rows or [token(f"▁word{i}") for i in range(len(weights))],
        "columns": columns,
        "data": [weights.tolist()],
    }
    result = {"source": "source", "target": "target", "attention": [block]}
    return b"".join(map(bytes, to_html({"model": "long", "results": [result]})))
