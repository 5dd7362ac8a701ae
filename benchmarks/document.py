"""Parts of every document that a benchmark writes: the machine, and tables."""

import os
import platform
import re
from importlib.metadata import version
from pathlib import Path

PACKAGES = ["onnxruntime", "ctranslate2", "torch", "transformers", "numpy", "fastapi", "uvicorn"]
CPUINFO = Path("/proc/cpuinfo")  # Linux only
# Instruction sets that matter at int8, each with its Linux CPU flags. One flag is enough.
INSTRUCTIONS = {
    "AVX2": {"avx2"},
    "AVX-512": {"avx512f"},
    "VNNI": {"avx512_vnni", "avx_vnni"},
    "AMX": {"amx_int8", "amx_bf16"},
}


def describe_machine() -> dict[str, str | int]:
    """Return the CPU, its instruction sets, and the versions that a measurement depends on."""
    cpuinfo = CPUINFO.read_text() if CPUINFO.exists() else ""
    return {
        "cpu": find_field(cpuinfo, "model name") or platform.processor(),
        "instructions": " ".join(instruction_sets(cpuinfo)),
        "cores": os.cpu_count() or 1,
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def instruction_sets(cpuinfo: str) -> list[str]:
    """Return those of INSTRUCTIONS that the first CPU has. Empty if it is not an x86 CPU."""
    flags = set(find_field(cpuinfo, "flags").split())
    return [name for name, any_of in INSTRUCTIONS.items() if flags & any_of]


def find_field(cpuinfo: str, name: str) -> str:
    """Return the field of the first CPU, or an empty text."""
    found = re.search(rf"^{name}[ \t]*:[ \t]*(.*)$", cpuinfo, re.MULTILINE)
    return found[1] if found else ""


def machine_line(machine: dict[str, str | int]) -> str:
    """Return the machine as one line of text, without the fields whose value is empty."""
    return ", ".join(f"{name} {value}" for name, value in machine.items() if value != "")


def table(columns: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
