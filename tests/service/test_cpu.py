"""The instruction sets that Linux reports are named."""

import pytest

from service.settings.cpu import instruction_sets

CPUINFO = """processor\t: 0
model name\t: A CPU
flags\t\t: fpu sse4_2 {flags}
vmx flags\t: vnmi
"""


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", []),
        ("avx", []),
        ("avx2", ["AVX2"]),
        ("avx2 avx_vnni", ["AVX2", "VNNI"]),
        ("avx2 avx512f avx512bw", ["AVX2", "AVX-512"]),
        ("avx2 avx512f avx512_vnni amx_tile amx_int8", ["AVX2", "AVX-512", "VNNI", "AMX"]),
    ],
)
def test_the_instruction_sets_of_a_cpu_are_named(flags, expected):
    assert instruction_sets(CPUINFO.format(flags=flags)) == expected


@pytest.mark.parametrize("cpuinfo", ["", "processor\t: 0\nFeatures\t: fp asimd\n"])
def test_a_cpu_without_x86_flags_has_no_instruction_sets(cpuinfo):
    assert instruction_sets(cpuinfo) == []
