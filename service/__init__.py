"""The serving side of Heed: bundles in, HTTP out. No torch anywhere."""

import os

# ONNX Runtime writes an identifier to the home directory and may report to its makers as soon as it
# is imported, unless this was set before; its API can only stop it afterwards.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
