"""Parts of every document that a benchmark writes: the machine, and tables."""

import os
import platform
from importlib.metadata import version

from service.settings.cpu import find_field, instruction_sets, read_cpuinfo

PACKAGES = ["onnxruntime", "ctranslate2", "torch", "transformers", "numpy", "fastapi", "uvicorn"]


def describe_machine() -> dict[str, str | int]:
    """Return the CPU, its instruction sets, and the versions that a measurement depends on."""
    cpuinfo = read_cpuinfo()
    return {
        "cpu": find_field(cpuinfo, "model name") or platform.processor(),
        "instructions": " ".join(instruction_sets(cpuinfo)),
        "cores": os.cpu_count() or 1,
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def machine_line(machine: dict[str, str | int]) -> str:
    """Return the machine as one line of text, without the fields whose value is empty."""
    return ", ".join(f"{name} {value}" for name, value in machine.items() if value != "")


def table(columns: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
