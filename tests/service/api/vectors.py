"""A valid request to /v1/attend."""

Q = [[1.0, 2.0]]


K = [[1.0, 2.0], [3.0, 4.0]]


GOOD = {"mechanism": "scaled_dot_product", "queries": Q, "keys": K, "values": [1.0, 2.0]}
