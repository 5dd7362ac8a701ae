"""The serving side of Heed: it loads bundles and answers HTTP requests, without torch."""

import os

# ONNX Runtime writes an identifier to the home directory and may send telemetry as soon as it is
# imported. Only this variable, set before the import, prevents it; its API would be too late.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__version__ = "0.1.0"
