"""Both KV caches, compared with a model of them that keeps every row apart and rebuilds
everything."""

from dataclasses import dataclass, field

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.bundle.manifest import Config, load_bundle
from service.runtime.cache import Cache, CrossCache
from service.runtime.device.cache import MOVE, DeviceCache, DeviceCross, Mover
from service.runtime.device.encoder import FINITE
from tests.service.runtime.conftest import CPU, memory_of
from tests.write_move import finite_graph, move_graph

DTYPES = [np.float32, np.float16]
KINDS = ["host", "device"]
MOST_POSITIONS = 70


@dataclass
class Source:
    """What the caches should hold of one source: numbers by layer and part, never padded."""

    cross: list[np.ndarray]  # (H, S, D) each
    rows: list[list[list[np.ndarray]]] = field(default_factory=list)  # row, array, position: (H, D)


@dataclass
class Model:
    config: Config
    dtype: type
    rows_per_source: int
    sources: list[Source] = field(default_factory=list)


@pytest.fixture(scope="module", params=["self_attention", "ssru"])
def config(request, tiny):
    return load_bundle(tiny).manifest.config.model_copy(update={"decoder": request.param})


@pytest.fixture(scope="module", params=DTYPES, ids=lambda dtype: dtype.__name__)
def mover(request):
    return Mover(CPU, request.param)


def new_cache(kind, config, rows_per_source, mover):
    if kind == "device":
        return DeviceCache(config, rows_per_source, mover)
    return Cache(config, rows_per_source, mover.dtype)


def own_shapes(config):
    """Heads and head_dim of what the decoder keeps of its target, by layer and part."""
    if config.recurrent:
        return [(1, config.d_model)] * config.num_decoder_layers
    return [(config.num_heads, head_dim) for head_dim in head_dims(config)]


def head_dims(config):
    return [config.d_qk, config.d_v] * config.num_decoder_layers


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_moves_keep_what_each_row_has_written(kind, config, mover, data):
    model = Model(config, mover.dtype, data.draw(st.sampled_from([1, 1, 3])))
    cache = new_cache(kind, config, model.rows_per_source, mover)
    random = np.random.default_rng(data.draw(st.integers(0, 9999)))
    for action in data.draw(st.lists(st.sampled_from(ACTIONS), max_size=30)):
        if action is not insert and not model.sources:
            continue
        places = addresses(cache)
        cache.bindings["bound"] = places
        action(cache, model, random)
        assert_holds(cache, model.sources, config.recurrent)
        if "bound" in cache.bindings:  # what is bound must be where it was
            assert all(now == then for now, then in zip(addresses(cache), places, strict=True))


def insert(cache, model, random):
    new = [draw_source(model, random) for _ in range(random.integers(1, 4))]
    cache.insert(join(new, cache, random))
    model.sources += new


def compact(cache, model, random):
    count = len(model.sources)
    keep = random.permutation(count)[: random.integers(0, count + 1)]
    cache.compact(keep)
    model.sources = [model.sources[i] for i in keep]


def reorder(cache, model, random):
    width = model.rows_per_source
    parents = [random.integers(0, width, width) for _ in model.sources]
    cache.reorder(np.concatenate([i * width + own for i, own in enumerate(parents)]))
    for source, own in zip(model.sources, parents, strict=True):
        source.rows = [[list(each) for each in source.rows[i]] for i in own]


def grow(cache, model, random):
    cache.grow(capacity := int(max(random.integers(1, MOST_POSITIONS), cache.position.max())))
    assert cache.capacity >= capacity


def write(cache, model, random):
    """Write a key and a value of every row at its position, or its state, as a step does in
    place."""
    if cache.position.max() == MOST_POSITIONS:
        return
    if cache.position.max() >= cache.capacity:
        cache.grow(int(cache.position.max()) + 1)
    rows = [row for source in model.sources for row in source.rows]
    for i, memory in enumerate(memory_of(cache)[0]):
        for r, row in enumerate(rows):
            heads = own_shapes(model.config)[i]
            row[i].append(random.standard_normal(heads).astype(model.dtype))
            memory[r, :, 0 if model.config.recurrent else cache.position[r]] = row[i][-1]
    cache.position += 1


ACTIONS = [insert, write, write, reorder, compact, grow]


def addresses(cache):
    return [view.__array_interface__["data"][0] for side in memory_of(cache) for view in side]


def draw_source(model, random):
    length = random.integers(1, 30)
    cross = [
        random.standard_normal((model.config.num_heads, length, head_dim)).astype(model.dtype)
        for head_dim in head_dims(model.config)
    ]
    own = own_shapes(model.config)
    return Source(cross, [[[] for _ in own] for _ in range(model.rows_per_source)])


def join(sources, cache, random):
    """Pad sources to the longest, or more on a device, as the encoder graph does; padding is not
    zero there."""
    lengths = [source.cross[0].shape[1] for source in sources]
    on_device = isinstance(cache, DeviceCache)
    padded = max(lengths) + int(on_device and random.integers(8))
    arrays = []
    for i, (heads, _, head_dim) in enumerate(each.shape for each in sources[0].cross):
        shape = (len(sources), heads, padded, head_dim)
        arrays.append(np.full(shape, 9, sources[0].cross[i].dtype))
        for row, source in enumerate(sources):
            arrays[-1][row, :, : lengths[row]] = source.cross[i]
    return uploaded(arrays, lengths, cache) if on_device else CrossCache(arrays, np.array(lengths))


def uploaded(arrays, lengths, cache):
    values = [ort.OrtValue.ortvalue_from_numpy(np.stack(arrays[place::2])) for place in range(2)]
    return DeviceCross(values, np.array(lengths), cache.mover)


def assert_holds(cache, sources, recurrent):
    rows = [row for source in sources for row in source.rows]
    lengths = [source.cross[0].shape[1] for source in sources]
    assert cache.sources == len(sources)
    assert cache.source_length.tolist() == lengths
    assert cache.position.tolist() == [len(row[0]) for row in rows]
    assert_rows(cache, rows, recurrent)
    for i, memory in enumerate(memory_of(cache)[1]):
        for b, source in enumerate(sources):
            np.testing.assert_array_equal(memory[b, :, : lengths[b]], source.cross[i])
    for b, source in enumerate(sources):
        alone = cache.cross(b)
        assert alone.source_length.tolist() == [lengths[b]]
        for ours, theirs in zip(alone.keys_values, source.cross, strict=True):
            np.testing.assert_array_equal(ours[0], theirs)


def assert_rows(cache, rows, recurrent):
    own, _ = memory_of(cache)
    if rows or not recurrent:
        capacity = 1 if recurrent else cache.capacity
        assert all(memory.shape[2] == capacity for memory in own)
    first = -1 if recurrent else 0  # a state is the last one that was written
    for i, memory in enumerate(own):
        assert len(memory) == len(rows)
        for r, row in enumerate(rows):
            for position, written in enumerate(row[i][first:]):
                np.testing.assert_array_equal(memory[r, :, position], written)


def test_layers_on_a_device_begin_where_vector_instructions_may_read(config, mover):
    cache = DeviceCache(config, 3, mover)
    model = Model(config, mover.dtype, 3)
    random = np.random.default_rng(0)
    cache.insert(join([draw_source(model, random)], cache, random))
    for length in (1, 17, 40):
        cache.grow(length)
        for places in (cache.self_blocks, cache.cross_blocks):
            offsets = [place.address - places[i % 2].address for i, place in enumerate(places)]
            assert all(offset % 16 == 0 for offset in offsets)


def test_the_graphs_that_run_on_a_device_are_those_described():
    for dtype, path in MOVE.items():
        element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        assert onnx.load(path).graph == move_graph(element).graph
    assert onnx.load(FINITE).graph == finite_graph().graph
