import io
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib import format as numpy_format

from torchserve_neuron_lstm.handlers.formats.npy import read_npy, write_npy
from torchserve_neuron_lstm.handlers.responses import RequestError

KINDS = ["b1", "f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
SHAPES = [(), (0,), (1,), (7,), (2, 3), (3, 0, 2), (2, 3, 4)]


def npy(array: np.ndarray, version: tuple[int, int] | None = None) -> bytes:
    buffer = io.BytesIO()
    numpy_format.write_array(buffer, array, version=version, allow_pickle=True)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_array_of_numbers_of_numpy_is_read_as_it_is(kind: str, order: str, shape: tuple[int, ...]) -> None:
    count = int(np.prod(shape, dtype=int))
    array = np.arange(count).reshape(shape).astype(order + kind)
    for laid_out in (array, np.array(array, order="F")):
        read = read_npy(npy(laid_out))
        assert tuple(read.shape) == shape
        assert array.tolist() == read.tolist()
        assert read.is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_written_numpy_reads(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randint(0, 2, shape).to(dtype)

    written = write_npy(tensor)
    array = np.load(io.BytesIO(written), allow_pickle=False)

    assert tuple(array.shape) == shape
    assert str(array.dtype) == str(dtype).removeprefix("torch.")
    assert tensor.tolist() == array.tolist()
    assert written.index(b"\n") % 64 == 63


def test_a_tensor_with_strides_is_written_in_order_and_bfloat16_as_float32() -> None:
    tensor = torch.arange(6).reshape(2, 3).t().to(torch.bfloat16)

    array = np.load(io.BytesIO(write_npy(tensor)))

    assert array.dtype == np.float32
    assert tensor.tolist() == array.tolist()


def header(text: str, version: bytes = b"\x01\x00") -> bytes:
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text.encode("latin-1")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "does not begin"),
        (b"hello world", "does not begin"),
        (b"\x93NUMPY", "version b''"),
        (b"\x93NUMPY\x04\x00\x00\x00", "version"),
        (b"\x93NUMPY\x01\x00", "0 bytes"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "ends sooner"),
        (header("{'descr': '<f4'"), "not a dictionary"),
        (header("__import__('os').getcwd()"), "not a dictionary"),
        (header("(" * 3000), "not a dictionary"),
        (header("{'descr': '<f4', 'fortran_order': False}"), "not a dictionary"),
        (header("{'descr': '<f4', 'fortran_order': 1, 'shape': (1,)}"), "fortran_order is not True or False"),
        (header("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"), "'|O' are not accepted"),
        (header("{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}"), "'<c8' are not accepted"),
        (header("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}"), "a list are not accepted"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}"), "the shape"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}"), "the shape"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': 3}"), "the shape"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}") + b"\0" * 11, "needs 12 bytes"),
        *(
            (header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}"), "product below 2**40")
            for shape in ((10**20 - 1,), (0, 1 << 39, 1 << 39), (1 << 39, 1 << 39, 0))
        ),
        (npy(np.array([{"a": 1}], dtype=object)), "'|O' are not accepted"),
        (header(f"({'1a,' * 900})"), "is not a dictionary"),  # Python would warn of each
    ],
)
def test_anything_else_is_refused_and_nothing_in_it_is_executed(content: bytes, told: str) -> None:
    with pytest.raises(RequestError) as refused:
        read_npy(content)

    assert refused.value.status == 400
    assert told in refused.value.message


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("spaces", range(4))
@pytest.mark.parametrize("kind", ["u1", "f4", "i8"])
def test_the_data_may_begin_anywhere(version: int, spaces: int, kind: str) -> None:
    """Not every writer pads the header to 64 bytes; a bytearray is read like bytes."""
    array = np.arange(5).astype(kind)
    text = f"{{'descr': '{array.dtype.str}', 'fortran_order': False, 'shape': (5,)}}" + " " * spaces
    size = len(text).to_bytes(2 if version == 1 else 4, "little")
    content = b"\x93NUMPY" + bytes((version, 0)) + size + text.encode() + array.tobytes()

    for body in (content, bytearray(content)):
        assert read_npy(body).tolist() == array.tolist()


def test_files_of_one_header_keep_their_own_data() -> None:
    """Headers are cached, data are not."""
    files = [bytearray(write_npy(torch.tensor(numbers))) for numbers in ([1, 2], [3, 4])]

    assert [read_npy(file).tolist() for file in files] == [[1, 2], [3, 4]]


def test_a_bytearray_is_not_copied() -> None:
    """TorchServe passes one for each request, and does not write to it later."""
    file = bytearray(write_npy(torch.tensor([1.0, 2.0])))
    start = len(file) - 8

    assert read_npy(file).data_ptr() == torch.frombuffer(file, dtype=torch.uint8, offset=start).data_ptr()


@given(st.data())
def test_a_damaged_file_is_read_or_refused(data: st.DataObject) -> None:
    content = bytearray(npy(np.arange(6, dtype=np.float32).reshape(2, 3)))
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    cut = content[: data.draw(st.integers(0, len(content)))]
    for damaged in (content, cut):
        with suppress(RequestError):
            assert isinstance(read_npy(damaged), torch.Tensor)
