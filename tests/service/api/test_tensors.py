"""Tensors of the Open Inference Protocol, compared with Triton's client and with NumPy."""

from contextlib import suppress

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from service.api.protocols.open_inference.tensors import (
    DTYPES,
    Form,
    Input,
    Tensor,
    pad,
    read_binary,
    read_inputs,
    split_body,
    write_binary,
    write_tensors,
)
from service.errors import Invalid, Unparsable
from service.formats.json import LEAST_PIECE

TEXTS = st.lists(st.text(st.characters(codec="utf-8"), max_size=9), max_size=9)
RAGGED = st.lists(st.lists(st.lists(st.integers(1, 9), max_size=4), max_size=3), min_size=1)


@given(TEXTS)
def test_texts_are_the_bytes_that_triton_writes_and_reads(texts):
    array = np.array(texts, object)
    written = write_binary(Tensor("BYTES", array))
    assert written == (serialize_byte_tensor(array).item() if texts else b"")
    assert [each.decode() for each in deserialize_bytes_tensor(written)] == texts
    assert read_binary("BYTES", written, "/source") == texts


@pytest.mark.parametrize("datatype", ["INT64", "FP32", "FP64"])
@given(data=st.data())
def test_numbers_keep_their_bits(datatype, data):
    array = data.draw(arrays(DTYPES[datatype], array_shapes(min_side=0)))
    written = write_binary(Tensor(datatype, array))
    assert written == array.tobytes()
    read = np.array(read_binary(datatype, written, ""), DTYPES[datatype])
    np.testing.assert_array_equal(read, array.ravel())


@given(st.binary(max_size=40))
def test_any_bytes_are_refused_or_are_those_of_the_texts_that_are_read(content):
    texts = []
    with suppress(Invalid):
        texts = read_binary("BYTES", content, "/source")
    assert write_binary(Tensor("BYTES", np.array(texts, object))) in (b"", content)


@given(RAGGED)
def test_padding_keeps_every_element_and_adds_zeros_behind(nested):
    padded = pad(nested, Form("INT64", 3))
    rows = [row for matrix in nested for row in matrix]
    longest = max(map(len, rows), default=0)
    assert padded.shape == (len(nested), max(map(len, nested)), longest)
    for i, matrix in enumerate(nested):
        for j, row in enumerate(matrix):
            assert padded[i, j, : len(row)].tolist() == row
    assert np.count_nonzero(padded) == sum(map(len, rows))  # those that are given are above 0


def test_texts_are_padded_with_empty_ones():
    assert pad([["a"], ["b", "c"]], Form("BYTES", 2)).tolist() == [["a", ""], ["b", "c"]]


@given(arrays(np.int64, array_shapes(min_dims=2, max_dims=2), elements=st.integers(-9, 9)))
def test_flat_nested_and_binary_data_are_the_same_rows(array):
    form = {"ids": Form("INT64", 2)}
    common = {"name": "ids", "shape": list(array.shape), "datatype": "INT64"}
    size = {"binary_data_size": array.nbytes}
    flat, nested = (
        Input.model_validate({**common, "data": data})
        for data in (array.ravel().tolist(), array.tolist())
    )
    binary = Input.model_validate({**common, "parameters": size})
    expected = {"ids": array.tolist()}
    assert read_inputs([flat], form, b"") == expected
    assert read_inputs([nested], form, b"") == expected
    assert read_inputs([binary], form, array.tobytes()) == expected


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "sorce"}, "/sorce is not one of the inputs of this model: did you mean source"),
        ({"datatype": "FP32"}, "datatype FP32: send BYTES"),
        ({"shape": [2, 1]}, r"shape \[2, 1\]: send one axis, such as \[2\]"),
        ({"shape": [0]}, "of at least 1"),
        ({"shape": [3]}, r"has 2 elements, but its shape \[3\] has 3"),
        ({"data": ["a", 1]}, "/source/1 must be a string"),
        ({"data": [["a"], ["b"]]}, "/source/0 must be a string"),
        ({"data": None}, "either data or binary_data_size"),
        ({"parameters": {"binary_data_size": 0}}, "either data or binary_data_size"),
        ({"parameters": {"binary_data_size": 3}}, "0 bytes follow the JSON.*add up to 3"),
    ],
)
def test_an_input_that_does_not_fit_is_refused(change, words):
    given = {"name": "source", "shape": [2], "datatype": "BYTES", "data": ["a", "b"], **change}
    with pytest.raises(Invalid, match=words):
        read_inputs([Input.model_validate(given)], {"source": Form("BYTES", 1)}, b"")


def test_an_input_is_given_once():
    given = Input(name="source", shape=[1], datatype="BYTES", data=["a"])
    with pytest.raises(Invalid, match="/source is given twice"):
        read_inputs([given, given], {"source": Form("BYTES", 1)}, b"")


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63) - 1])
def test_an_integer_has_64_bits(number):
    given = Input(name="ids", shape=[1], datatype="INT64", data=[number])
    with pytest.raises(Invalid, match="more than 64 bits"):
        read_inputs([given], {"ids": Form("INT64", 1)}, b"")


@pytest.mark.parametrize("header", ["", "-1", "5", "+1", "1.0", "²", "9" * 5000])
def test_the_length_of_the_json_is_within_the_body(header):
    with pytest.raises(Unparsable, match="of the 4 bytes"):
        split_body(b"{}ab", header)


def test_the_body_is_json_and_the_bytes_behind_it():
    assert split_body(b"{}ab", "2") == (b"{}", b"ab")
    assert split_body(b"{}ab", None) == (b"{}ab", b"")


def test_a_large_answer_is_in_pieces():
    array = np.arange(1 << 19).astype("<f4")
    pieces, _ = write_tensors({"id": "a"}, {"x": Tensor("FP32", array)}, ())
    json = [*pieces]
    assert max(map(len, json)) < 2 * LEAST_PIECE < sum(map(len, json))
    assert orjson.loads(b"".join(json))["outputs"][0]["data"] == array.tolist()


def test_an_answer_may_have_no_output_in_json():
    array = np.array([[1.5]], "<f4")
    header, content = write_tensors({"id": "a"}, {"x": Tensor("FP32", array)}, {"x"})
    assert b"".join(header) == (
        b'{"id":"a","outputs":[{"name":"x","datatype":"FP32","shape":[1,1],'
        b'"parameters":{"binary_data_size":4}}]}\n'
    )
    assert b"".join(content) == array.tobytes()
