"""Sessions over both kinds of KV cache, and their memory as arrays."""

import ctypes

import numpy as np
import pytest

from service.runtime.cache import Cache
from service.runtime.providers import PROVIDERS, Device
from service.runtime.session import Session
from service.settings.settings import Precision, Provider, Settings

CPU = Device("cpu", PROVIDERS[Provider.cpu])  # stands for a GPU


@pytest.fixture(scope="session", params=["host", "device"])
def session(request, bundle):
    """A session at fp32 whose caches are arrays, or in the memory of a "device": the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "device":
            patch.setattr("service.runtime.session.cache_device", lambda _: CPU)
        return Session(bundle, Settings(precision=Precision.fp32, provider=Provider.cpu))


def memory_of(cache):
    """Return the keys and values of a cache, its own and those of cross-attention, as views."""
    if isinstance(cache, Cache):
        return cache.self_keys_values, cache.cross_keys_values
    both = cache.self_blocks, cache.cross_blocks
    return tuple([view(place, cache.dtype) for place in places] for places in both)


def bytes_of(cache):
    """Return the bytes that a cache holds, used or not; arrays are views of all layers."""
    memory = memory_of(cache)
    if isinstance(cache, Cache):
        memory = ({id(array.base): array.base for array in each}.values() for each in memory)
    return sum(array.nbytes for each in memory for array in each)


def view(place, dtype):
    size = int(np.prod(place.shape)) * np.dtype(dtype).itemsize
    buffer = (ctypes.c_char * size).from_address(place.address)
    return np.frombuffer(buffer, dtype).reshape(place.shape)
