"""Valid requests."""

Q = [[1.0, 2.0]]
K = [[1.0, 2.0], [3.0, 4.0]]
GOOD = {"mechanism": "scaled_dot_product", "queries": Q, "keys": K, "values": [1.0, 2.0]}
BODIES = {  # to the default model
    "/v1/decode": {"source": "heed"},
    "/v1/attention": {"source": "heed"},
    "/v1/attribution": {"source": "heed"},
    "/v1/encode": {"source": "heed"},
    "/v1/score": {"source": "heed", "target": "HH IY1 D"},
    "/v1/tokenize": {"text": "heed"},
    "/v1/detokenize": {"token_ids": [[5, 6]]},
}


def tensor_of(*texts):
    """Return the sources of a request of the Open Inference Protocol."""
    return {"name": "source", "datatype": "BYTES", "shape": [len(texts)], "data": [*texts]}
