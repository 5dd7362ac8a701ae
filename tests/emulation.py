"""Run Python on an emulated x86 CPU that has AVX2 but neither AVX-512 nor VNNI (QEMU)."""

import os
import shutil
import subprocess
import sys

import pytest

EMULATOR = shutil.which("qemu-x86_64")
needs_emulator = pytest.mark.skipif(
    EMULATOR is None and not os.environ.get("CI"), reason="qemu-user is not installed"
)


def run_on_avx2(*arguments):
    """Return what `python *arguments` prints there. Raise CalledProcessError if it fails."""
    assert EMULATOR, "install qemu-user"
    command = [EMULATOR, "-cpu", "Haswell-noTSX", sys.executable, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=300)
    return done.stdout.decode()
