"""ModelStreamInfer on the built-in server, by Triton's client."""

import os
import queue
import secrets
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builtin_server import serving
from grpc_calls import client, tensor
from host_archives import Archives, assert_scores_of_the_whole
from mixed_requests import frames_of

pytestmark = pytest.mark.timeout(300)
FRAMES = frames_of(12)


def test_a_stream_has_the_outputs_of_its_session_and_outlives_errors(archives: Archives, tmp_path: Path) -> None:
    session = secrets.token_hex(8)
    with serving(tmp_path, archives.path("stream")) as server, client(server.grpc) as called:
        found: queue.Queue[tuple[Any, Any]] = queue.Queue()
        called.start_stream(lambda result, error: found.put((result, error)))

        def send(start: int, model: str = "stream", **fields: Any) -> None:
            chunk = tensor("frames", FRAMES[start : start + 3][None])
            called.async_stream_infer(model, [chunk], sequence_id=session, **fields)

        def message() -> str:
            return str(found.get(timeout=60)[1])

        send(0, sequence_start=True)
        send(3)
        send(0, "nothing")
        send(6)
        scores = [found.get(timeout=60)[0].as_numpy("scores")[0] for _ in range(2)]
        assert "Model not found: nothing" in message()
        assert "a chunk before this one failed" in message()
        send(6, parameters={"sequence_step": 6})
        send(9)
        result, error = found.get(timeout=60)
        assert error is None
        assert result.get_response().parameters["ts_request_sequence_step"].int64_param == 9
        scores += [one.as_numpy("scores")[0] for one in (result, found.get(timeout=60)[0])]
        assert_scores_of_the_whole(archives, FRAMES, [np.array(one) for one in scores])

        os.killpg(server.command.process.pid, signal.SIGTERM)
        assert "the server ends: call again" in message()
        assert server.command.process.wait(60) == 0
