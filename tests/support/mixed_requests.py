"""Good and bad requests in all formats, to the models of `served_models`."""

import io
import json
import random
from collections.abc import Iterator, Mapping

import numpy as np
import tritonclient.http as triton
from rest import JSON

NPY = {"Content-Type": "application/x-npy", "Accept": "application/x-npy"}


def frames_of(length: int, seed: int = 0) -> np.ndarray:
    """Frames float32[T, 3] of one sequence."""
    return np.random.default_rng(seed).standard_normal((length, 3)).astype(np.float32)


def npy(array: np.ndarray) -> bytes:
    """The bytes of a .npy file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def v2_body(arrays: Mapping[str, np.ndarray], *, binary: bool) -> tuple[bytes, dict[str, str]]:
    """A V2 request, as Triton's client writes it."""
    inputs = []
    for name, array in arrays.items():
        datatype = {"float32": "FP32", "int64": "INT64"}[str(array.dtype)]
        inputs.append(triton.InferInput(name, array.shape, datatype).set_data_from_numpy(array, binary_data=binary))
    body, json_bytes = triton.InferenceServerClient.generate_request_body(inputs, outputs=None)
    if json_bytes is None:
        return body, dict(JSON)
    return body, {"Inference-Header-Content-Length": str(json_bytes), "Content-Type": "application/octet-stream"}


def mixed_requests(count: int) -> Iterator[tuple[str, str, bytes, dict[str, str]]]:
    """Model, path, body and headers of good and bad requests in all formats."""
    rng, too_long = random.Random(0), json.dumps([[0.5] * 3] * 40).encode()
    for index in range(count):
        length = rng.randint(1, 32)
        frames, ids = frames_of(length, index), np.random.default_rng(index).integers(0, 20, length)
        two = {"ids": ids.tolist(), "frames": frames.tolist()}
        arrays = {"ids": ids[None], "frames": frames[None]}
        bad = rng.choice([b"{", b"", b"[[1, 2]]", b"[]", b'{"frames": 1}', b'{"inputs": []}', too_long])
        chunk = json.dumps(frames[:16].tolist()).encode()
        yield from [
            [("scorer", "/predictions/scorer", json.dumps(frames.tolist()).encode(), dict(JSON))],
            [("tagger", "/predictions/tagger", json.dumps(two).encode(), dict(JSON))],
            [("tagger", "/v1/models/tagger:predict", json.dumps({"instances": [two, two]}).encode(), dict(JSON))],
            [("scorer", "/v2/models/scorer/infer", *v2_body({"frames": frames[None]}, binary=False))],
            [("tagger", "/v2/models/tagger/infer", *v2_body(arrays, binary=True))],
            [("scorer", "/predictions/scorer", npy(frames), dict(NPY))],
            [("scorer", "/predictions/scorer", bad, dict(JSON))],
            [("stream", "/predictions/stream", chunk, {**JSON, "ts-request-sequence-step": "x"})],
        ][index % 8]
