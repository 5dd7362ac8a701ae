"""What a session does on a device, with the CPU as the device."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from service.bundle.manifest import load_bundle
from service.errors import PassFailed
from service.runtime.device.binding import DeviceBinding, DeviceBindings
from service.runtime.device.cache import Mover
from service.runtime.device.encoder import DeviceEncoder
from service.runtime.session import Session
from tests.service.runtime.conftest import CPU
from tests.service.runtime.sessions import FP32, sources


@pytest.fixture
def device(tiny, monkeypatch):
    monkeypatch.setattr("service.runtime.session.cache_device", lambda _: CPU)
    return Session(load_bundle(tiny), FP32)


@pytest.fixture
def made(monkeypatch):
    """The bindings that are made, in a list."""
    bindings, make = [], DeviceBinding.__init__

    def record(self, *given, **named):
        make(self, *given, **named)
        bindings.append(self)

    monkeypatch.setattr(DeviceBinding, "__init__", record)
    return bindings


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 0, 3e38])
def test_numbers_are_finite_if_all_of_them_are(tiny, number):
    config = load_bundle(tiny).manifest.config
    encoder = DeviceEncoder(config, 0, CPU, Mover(CPU, np.float32))
    memory = np.full((2, 3, 4), 3e38, np.float32)
    memory[1, 2, 0] = number
    assert encoder.is_finite(ort.OrtValue.ortvalue_from_numpy(memory)) == np.isfinite(number)


def test_a_memory_with_nan_is_refused(session, bundle):
    batch, config = sources(bundle, [5, 2]), bundle.manifest.config
    gates = np.ones((2, config.num_encoder_layers, config.num_heads), np.float32)
    session.encode(batch, gates)
    gates[1] = np.nan
    with pytest.raises(PassFailed, match="NaN"):
        session.encode(batch, gates)


def test_a_memory_that_nobody_wants_stays_on_the_device(device, tiny):
    batch = sources(load_bundle(tiny), [5, 2])
    memory, cross = device.encode(batch, wants_memory=False)
    wanted, same = device.encode(batch)
    assert (memory, [len(each) for each in wanted]) == ([], [5, 2])
    for ours, theirs in zip(cross.keys_values, same.keys_values, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_first_batch_is_attended_to_where_the_encoder_wrote_it(device, tiny):
    longest = load_bundle(tiny).manifest.config.max_source_length
    for length, moves in ((5, False), (longest, True)):  # no room for a multiple of 8 positions
        _, cross = device.encode(sources(load_bundle(tiny), [length, 2]))
        cache = device.new_cache(rows_per_source=1)
        cache.insert(cross)
        assert (cache.cross_blocks[0].address != cross.blocks[0].address) == moves


def test_a_binding_that_comes_back_reads_the_lengths_of_the_new_sources(
    device, tiny, made, monkeypatch
):
    cache = device.new_cache(rows_per_source=1)
    cache.insert(device.encode(sources(load_bundle(tiny), [5, 7]))[1])

    def read(lengths):
        """Step in the same memory, as if another cache had it now."""
        cache.position, cache.source_length, cache.bindings = np.zeros(2, int), lengths, {}
        return device.step(cache, np.array([4, 5]), 3).log_probs.copy()

    whole, shorter = read(np.array([5, 7])), read(np.array([2, 3]))
    assert len(made) == 1
    np.testing.assert_array_equal(read(np.array([5, 7])), whole)
    monkeypatch.setattr(DeviceBindings, "_find", lambda *_: None)
    np.testing.assert_array_equal(read(np.array([2, 3])), shorter)
    assert len(made) == 2
    assert (shorter != whole).all()


@pytest.fixture
def captured(device, made, monkeypatch):
    """The bindings that are captured: places in `made`, and numbers. Three runs are often."""
    found, capture = [], DeviceBinding.capture

    def record(self, number):
        capture(self, number)
        found.append((made.index(self), number))

    monkeypatch.setattr(DeviceBinding, "capture", record)
    monkeypatch.setattr("service.runtime.device.binding.captures", lambda _: True)
    monkeypatch.setattr("service.runtime.device.binding.OFTEN", 3)
    names = device._self_names, device._cross_names
    device._device_bindings = DeviceBindings(device.open("step"), *names)
    return found


@pytest.fixture
def beams(device, tiny):
    cache = device.new_cache(rows_per_source=2)
    cache.insert(device.encode(sources(load_bundle(tiny), [5]))[1])
    return cache


def step_and_reorder(device, beams):
    device.step(beams, np.array([4, 5]), 4)
    beams.reorder(np.array([1, 0]))


def test_beams_that_are_reordered_at_each_step_take_turns_in_two_bindings(
    device, beams, made, captured
):
    """Both are captured once they are used often."""
    for step in range(10):
        assert captured == [(0, 1), (1, 2)][: max(0, step - 6)]
        step_and_reorder(device, beams)
    assert len(made) == 2


def test_nothing_is_captured_any_more_once_that_has_failed(
    device, beams, made, captured, monkeypatch
):
    for _ in range(6):
        step_and_reorder(device, beams)
    with monkeypatch.context() as patch:
        patch.setattr(made[0], "_binding", None)  # the run that captures it raises
        with pytest.raises(AttributeError):
            step_and_reorder(device, beams)
    beams.bindings = {}
    for _ in range(9):
        step_and_reorder(device, beams)
    assert captured == [(0, 1)]
    assert len(made) == 3


def test_a_step_takes_the_number_of_candidates_as_it_is_given(tiny):
    """Else a device would send a number to the host in every step, and could not capture it."""
    graph = onnx.load(tiny / "fp32" / "step.onnx", load_external_data=False).graph
    assert [node.op_type for node in graph.node if "k" in node.input] == ["TopK"]
