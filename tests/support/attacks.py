"""Hostile requests, made to take much time or memory, for a model of frames[B, T, 3]."""

import json
from collections.abc import Mapping

BLOCK = """
inputs: {frames: {dtype: float32, shape: [batch, time, 3]}}
lengths: lengths
outputs: [scores]
buckets: {batch: [1, 8], length: [16, 4096]}
limits: {timesteps: 20000}
"""
"""The model's block in model-config.yaml, without its engine."""
LARGEST_ANSWER = 58_000
"""Bytes: the server's `max_response_size`."""
_JSON = {"Content-Type": "application/json"}
_NPY = {"Content-Type": "application/x-npy"}
_TEXT = {"Content-Type": "text/plain"}
_FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def entries(count: int, shape: list[int], data: list[float]) -> bytes:
    """A V2 request of equal entries."""
    one = {"name": "frames", "shape": shape, "datatype": "FP32", "data": data}
    return json.dumps({"inputs": [one] * count}).encode()


def npy(shape: str, descr: str = "<f4", data: bytes = b"") -> bytes:
    """A .npy file with any header."""
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def inputs_of(entry: str, count: int) -> bytes:
    """A V2 request of entries that are not whole."""
    return f'{{"inputs": [{",".join([entry] * count)}]}}'.encode()


_NO_BYTES = inputs_of('{"parameters": {"binary_data_size": 0}}', 150_000)

ATTACKS: Mapping[str, tuple[bytes, Mapping[str, str], int]] = {
    "an id that a refusal would repeat": (
        json.dumps({"model_name": "x", "inputs": 1, "id": "x" * 2_000_000}).encode(), _JSON, 400),
    "an id of two megabytes": (
        json.dumps({"id": "\u00e9" * 300_000, "inputs": [{"name": "frames", "shape": [1, 3], "datatype": "FP32",
                                                      "data": [0, 0, 0]}]}).encode(), _JSON, 400),
    "a million sequences": (entries(1024, [1024, 0, 3], []), _JSON, 413),
    "batches in batches": (entries(200, [1024, 1, 3], [0.0] * 3072), _JSON, 413),
    "half a body": (entries(200, [1024, 1, 3], [0.0] * 3072)[:2_000_000], _JSON, 400),
    "an answer that is too large": (json.dumps([[0.5, 0.5, 0.5]] * 4096).encode(), _JSON, 413),
    "more timesteps than allowed": (json.dumps({"instances": [[[0, 0, 0]] * 4000] * 9}).encode(), _JSON, 413),
    "sizes of thousands of digits": (npy(f"(0, {'9' * 4000})"), _NPY, 400),
    "no elements of an absurd size": (npy("(0, 1180591620717411303424)"), _NPY, 400),
    "names without end": (json.dumps({"n" * 1_000_000: 1}).encode(), _JSON, 400),
    "objects without end": (inputs_of('{"parameters": {}}', 300_000), _TEXT, 413),
    "tensors of no bytes": (_NO_BYTES, {"Inference-Header-Content-Length": str(len(_NO_BYTES))}, 413),
    "lists 900 deep": (b"[" + (b"[" * 900 + b"]" * 900 + b",") * 3500 + b"0]", _TEXT, 413),
    "objects of nothing": (b"[" + b'{"":0},' * 900_000 + b"0]", _TEXT, 413),
    "fields of a form": (b"&".join(b"a%d=1" % number for number in range(3000)), _FORM, 400),
    "lists in lists": (b"[" * 3_000_000, {"Content-Type": "application/octet-stream"}, 413),
}  # fmt: skip
"""Body, headers and the status of the response, by name."""
