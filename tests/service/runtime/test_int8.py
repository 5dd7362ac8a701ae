"""int8 products are exact, whether or not the CPU has VNNI."""

from tests.emulation import needs_emulator, run_on_avx2
from tests.saturation import EXACT, largest_product


def test_the_largest_product_is_exact():
    assert largest_product() == EXACT


@needs_emulator
def test_the_largest_product_is_exact_without_vnni():
    assert int(run_on_avx2("-m", "tests.saturation")) == EXACT
