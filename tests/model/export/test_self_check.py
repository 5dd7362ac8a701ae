"""What the check at export accepts, the service opens."""

from dataclasses import replace

import numpy as np
import pytest

from model.export.checks import self_check
from model.export.checks.self_check import check_like_service
from service.bundle.manifest import load_bundle
from service.errors import StartupError
from service.runtime import reference
from service.runtime import self_check as of_service
from service.runtime.session import Session
from service.settings.settings import Precision, Provider, Settings


def test_the_limits_are_those_of_the_service():
    assert self_check.ROUNDED_LIMITS == of_service.ROUNDED
    assert (self_check.RELATIVE, self_check.ABSOLUTE) == (of_service.RELATIVE, of_service.ABSOLUTE)
    assert self_check.LARGEST_IDS == reference.LARGEST_IDS


@pytest.fixture(scope="module", params=["fp32", "int8"])
def precision(request):
    return request.param


@pytest.fixture(scope="module")
def session(g2p, precision):
    return Session(
        load_bundle(g2p), Settings(precision=Precision(precision), provider=Provider.cpu)
    )


def is_started(session, bundle, root):
    """Return whether the service starts a bundle with the parity.npz in `root`."""
    try:
        of_service.check_parity(session, replace(bundle, root=root))
    except StartupError:
        return False
    return True


@pytest.mark.parametrize(("noise", "passes"), [(0, True), (0.4, True), (0.9, False), (2, False)])
@pytest.mark.parametrize("name", ["log_probs", "memory"])
def test_graphs_that_pass_at_export_pass_at_the_start(
    g2p, session, precision, tmp_path, name, noise, passes
):
    """`noise` is a share of the service's limit, added to torch's numbers."""
    with np.load(g2p / "parity.npz") as file:
        torch_says = dict(file)
    exact = torch_says[name]
    random = np.random.default_rng(0).standard_normal(exact.shape).astype(np.float32)
    if precision == "fp32":  # the largest of all numbers counts
        size = noise * (1e-5 + 1e-4 * np.abs(exact)) * np.sign(random)
    elif name == "memory":
        size = noise * 0.2 * np.sqrt(np.mean(exact**2)) * random
    else:
        size = noise * 0.1 * exact.std() * random
    np.savez(tmp_path / "parity.npz", **{**torch_says, name: exact + size.astype(np.float32)})
    (tmp_path / precision).symlink_to(g2p / precision)
    fault = check_like_service(tmp_path, precision)
    assert (fault is None) is passes
    if passes:
        assert is_started(session, load_bundle(g2p), tmp_path)
    else:
        assert fault.startswith(("memory[", "log_probs[", "log-probs differ from torch's by "))
    if noise > 1:
        assert not is_started(session, load_bundle(g2p), tmp_path)
