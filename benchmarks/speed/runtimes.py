"""Other runtimes for the same weights: Optimum's ONNX Runtime, and OpenVINO through optimum-intel.

`make runtimes` installs them in an environment of their own: they need an older transformers. The
functions below run there (see System.python); modules that are not installed here are imported by
name.
"""

import tempfile
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.kit.process import REPOSITORY, Decode, System

if TYPE_CHECKING:  # as in systems.py
    from model.network.config import TransformerConfig

PYTHON = REPOSITORY / ".venv-runtimes" / "bin" / "python"
TASK = "text2text-generation-with-past"


def runtimes(config: "TransformerConfig") -> list[System]:
    """Return a system for each runtime, or none if they are not installed."""
    if not PYTHON.exists():
        return []
    python = str(PYTHON)
    return [
        System("Optimum int8", partial(optimum, config=config), python),
        System("OpenVINO int8", partial(openvino, config=config), python),
    ]


def optimum(_: Path, config: "TransformerConfig") -> Decode:
    """Prepare Optimum's ONNX export, quantised to int8 with scales measured in each run."""
    from benchmarks.kit.hugging_face import generate_calls

    onnx_export_from_model = import_module("optimum.exporters.onnx").onnx_export_from_model
    optimum_onnx = import_module("optimum.onnxruntime")
    with tempfile.TemporaryDirectory() as folder:
        onnx_export_from_model(network(config), Path(folder), task=TASK)
        scheme = optimum_onnx.AutoQuantizationConfig.avx512_vnni(is_static=False, per_channel=True)
        for graph in [*Path(folder).glob("*.onnx")]:
            quantizer = optimum_onnx.ORTQuantizer.from_pretrained(folder, file_name=graph.name)
            quantizer.quantize(scheme, folder, file_suffix="")
        return generate_calls(optimum_onnx.ORTModelForSeq2SeqLM.from_pretrained(folder))


def openvino(_: Path, config: "TransformerConfig") -> Decode:
    """Prepare OpenVINO's export with int8 weights, its default for int8."""
    from benchmarks.kit.hugging_face import generate_calls

    export_from_model = import_module("optimum.exporters.openvino").export_from_model
    intel = import_module("optimum.intel")
    with tempfile.TemporaryDirectory() as folder:
        int8 = intel.OVConfig(quantization_config=intel.OVWeightQuantizationConfig(bits=8))
        export_from_model(network(config), Path(folder), task=TASK, ov_config=int8)
        return generate_calls(intel.OVModelForSeq2SeqLM.from_pretrained(folder))


def network(config: "TransformerConfig") -> Any:
    from benchmarks.kit.hugging_face import to_hugging_face
    from benchmarks.kit.models import random_model

    return to_hugging_face(random_model(config))
