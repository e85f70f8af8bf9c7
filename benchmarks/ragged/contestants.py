"""Four ways to answer a ragged batch: a list of unpadded requests to a list of unpadded answers.

All have the same model and weights, all threads, and time-major tensors, so that no contestant has to transpose.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from torchserve_neuron_lstm.archiver_ext.torch_threads import on_threads
from torchserve_neuron_lstm.handlers.runtime.loader import load_archive

from .model import Ragged

Answer = tuple[torch.Tensor, torch.Tensor]
"""Outputs of one request: the states of every timestep [T, D x H], the last states [D x H]."""

Contestant = Callable[[Sequence[torch.Tensor]], list[Answer]]
"""A function from requests [T, F], of any lengths, to their answers, in order."""


def alone(model: Ragged) -> Contestant:
    """Compute the reference: the model in eager mode, each request by itself."""

    @torch.inference_mode()
    def answer(requests: Sequence[torch.Tensor]) -> list[Answer]:
        singles = [model(request[:, None], torch.tensor([len(request)])) for request in requests]
        return [(states[:, 0], last[0]) for states, last in singles]

    return answer


def eager_packed(model: Ragged) -> Contestant:
    """The model as written: pad_sequence, pack_padded_sequence, nn.LSTM, pad_packed_sequence."""

    @torch.inference_mode()
    def answer(requests: Sequence[torch.Tensor]) -> list[Answer]:
        lengths = _lengths(requests)
        states, last = model(pad_sequence(list(requests)), torch.tensor(lengths))
        return _unpadded(states, last, lengths)

    return answer


def eager_padded(model: Ragged) -> Contestant:
    """nn.LSTM over the padded batch, which oneDNN runs.

    It supports one direction only: the backward direction would begin in the padding.

    In the forward direction the states of real timesteps are right, and the last real one is the final state.
    """

    @torch.inference_mode()
    def answer(requests: Sequence[torch.Tensor]) -> list[Answer]:
        lengths = _lengths(requests)
        states, _ = model.lstm(pad_sequence(list(requests)))
        last = states[torch.tensor(lengths) - 1, torch.arange(len(lengths))]
        return _unpadded(states, last, lengths)

    return answer


def onnx_padded(model: Ragged, threads: int) -> Contestant:
    """ONNX Runtime over the padded batch: torch's own export, with `sequence_lens` for the LSTM operator."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(_exported(model), options, providers=["CPUExecutionProvider"])

    def answer(requests: Sequence[torch.Tensor]) -> list[Answer]:
        lengths = _lengths(requests)
        feeds = {"frames": pad_sequence(list(requests)).numpy(), "lengths": torch.tensor(lengths).numpy()}
        states, last = (torch.from_numpy(output) for output in session.run(None, feeds))
        return _unpadded(states, last, lengths)

    return answer


def served(archive: Path, threads: int) -> Contestant:
    """The archive, unpacked in a folder and then loaded, planned and run as in the handler."""
    variants = load_archive(archive, threads)
    serving = torch.get_num_threads()  # those of torch: an engine may have other threads

    def answer(requests: Sequence[torch.Tensor]) -> list[Answer]:
        lengths = _lengths(requests)
        answers, _ = variants.run_plan(variants.plan(lengths), [(request,) for request in requests], lengths)
        return [(states, last) for states, last in answers]

    return on_threads(serving, answer)


def disagreement(ours: Sequence[Answer], eager: Sequence[Answer], tolerance: float = 1e-5) -> float:
    """The largest |ours - eager| / (tolerance + tolerance x |eager|).

    A value above 1 is wrong, and so is any other shape.
    """
    pairs = [pair for answers in zip(ours, eager, strict=True) for pair in zip(*answers, strict=True)]
    if any(given.shape != right.shape for given, right in pairs):
        return float("inf")
    shares = [float(((given - right).abs() / (tolerance + tolerance * right.abs())).max()) for given, right in pairs]
    return max(float("inf") if share != share else share for share in shares)  # noqa: PLR0124 - not a number


def _lengths(requests: Sequence[torch.Tensor]) -> list[int]:
    return [len(request) for request in requests]


def _unpadded(states: torch.Tensor, last: torch.Tensor, lengths: Sequence[int]) -> list[Answer]:
    """Views of the answers: the cheapest way for a user."""
    return [(states[:length, row], last[row]) for row, length in enumerate(lengths)]


def _exported(model: Ragged) -> bytes:
    example = (torch.zeros(3, 2, model.lstm.input_size), torch.tensor([3, 2]))
    times_rows = {0: "time", 1: "batch"}
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter that supports packed sequences is deprecated, and warns
        file = Path(folder) / "model.onnx"
        torch.onnx.export(
            _Sorted(model),
            example,
            file,
            dynamo=False,
            input_names=["frames", "lengths"],
            output_names=["states", "last"],
            dynamic_axes={"frames": times_rows, "lengths": {0: "batch"}, "states": times_rows, "last": {0: "batch"}},
        )
        return file.read_bytes()


class _Sorted(nn.Module):
    """The same model for the exporter, which cannot sort within the graph.

    The operator needs no order.
    """

    def __init__(self, model: Ragged) -> None:
        super().__init__()
        self.model = model

    def forward(self, frames: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        packed, (state, _) = self.model.lstm(pack_padded_sequence(frames, lengths))
        states, _ = pad_packed_sequence(packed)
        return states, torch.cat(list(state[-self.model.directions :]), dim=1)
