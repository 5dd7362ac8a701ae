"""Which provider and precision a session takes, by what is installed and what a bundle has."""

from dataclasses import replace

import pytest

from service.errors import StartupError
from service.runtime import providers
from service.runtime.providers import choose_precision, installed_provider
from service.settings.settings import Precision, Provider

CPU, CUDA, TENSORRT = (f"{name}ExecutionProvider" for name in ("CPU", "CUDA", "Tensorrt"))


@pytest.mark.parametrize(
    ("installed", "wanted", "chosen"),
    [
        ([CPU], "auto", CPU),
        ([CUDA, CPU], "auto", CUDA),
        ([TENSORRT, CUDA, CPU], "auto", CUDA),
        ([TENSORRT, CPU], "auto", CPU),
        (["CoreMLExecutionProvider", CPU], "auto", CPU),
        ([TENSORRT, CUDA, CPU], "cpu", CPU),
        ([TENSORRT, CUDA, CPU], "tensorrt", TENSORRT),
    ],
)
def test_auto_takes_cuda_where_it_is_installed(monkeypatch, installed, wanted, chosen):
    monkeypatch.setattr(providers.ort, "get_available_providers", lambda: installed)
    assert installed_provider(Provider(wanted)) == chosen


@pytest.mark.parametrize(
    ("held", "on_cpu", "chosen"),
    [
        (["int8", "fp32", "fp16"], True, "int8"),
        (["fp32", "fp16"], True, "fp32"),
        (["fp16"], True, "fp16"),
        (["int8", "fp32", "fp16"], False, "fp16"),
        (["int8", "fp32"], False, "fp32"),
        (["int8"], False, "int8"),
    ],
)
def test_auto_takes_the_fastest_precision_that_the_bundle_has(bundle, held, on_cpu, chosen):
    (graphs, *_) = bundle.manifest.precisions.values()
    manifest = bundle.manifest.model_copy(update={"precisions": dict.fromkeys(held, graphs)})
    altered = replace(bundle, manifest=manifest)
    assert choose_precision(altered, Precision.auto, on_cpu) == chosen
    assert choose_precision(altered, Precision(chosen), not on_cpu) == chosen


def test_a_precision_that_the_bundle_lacks_is_refused(bundle):
    with pytest.raises(StartupError, match=r"no graphs of precision fp16; choose one of: auto, "):
        choose_precision(bundle, Precision.fp16, on_cpu=False)


@pytest.mark.parametrize(
    ("provider", "memory"), [(CPU, None), (CUDA, ("cuda", CUDA)), (TENSORRT, ("cuda", CUDA))]
)
def test_caches_lie_in_the_memory_that_the_provider_computes_in(provider, memory):
    assert providers.cache_device(provider) == memory
