"""A model that handles missing values, packaged for several engines: NaN reaches it, and no other row."""

from __future__ import annotations

from pathlib import Path

import torch
from archiving import archive, write_source

from torchserve_neuron_lstm.archiver_ext.evaluation.verification_cases import draw_inputs, poisoned_padding
from torchserve_neuron_lstm.bucketing.shapes import Bucket, TensorSpec
from torchserve_neuron_lstm.config.manifest import read_manifest
from torchserve_neuron_lstm.inference.open_archive import open_archive

MODEL = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 5, batch_first=True, bidirectional=True)

    def forward(self, x):
        return self.lstm(torch.cat([x.nan_to_num(0.5), x.isnan().float()], -1))[0]
"""
BLOCK = """\
inputs: {x: {dtype: float32, shape: [batch, time, 2], missing: nan}}
backend: {auto: {try: [native, onnxruntime, eager]}}
buckets: {batch: [1, 4], length: [4, 9]}
"""


def test_every_engine_answers_missing_values_as_the_model_does(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    source = write_source(tmp_path / "source", tmp_path / "model.py", BLOCK)

    done = archive(source, "m", tmp_path, ["--archive-format", "no-archive"])

    assert "rejected" not in done.stdout
    assert all(f" {engine} " in done.stdout for engine in ("native", "onnxruntime", "eager"))
    assert [spec.nan for spec in read_manifest(tmp_path / "m").inputs] == [True]
    requests = [torch.randn(length, 2) for length in (9, 1, 4, 3, 7)]
    for request in requests[::2]:
        request[-1] = request[0, 0] = torch.nan
    lists = [[[None if v != v else v for v in row] for row in request.tolist()] for request in requests]  # noqa: PLR0124 - NaN
    with open_archive(tmp_path / "m") as model:
        assert model.describe()["inputs"] == [
            {"name": "x", "dtype": "float32", "shape": ["batch", "time", 2], "missing": "nan"}
        ]
        for given in (requests, lists):
            for request, answer in zip(requests, model.predict(given, as_numpy=True), strict=True):
                torch.testing.assert_close(torch.as_tensor(answer), source.model(request[None])[0].detach())


def test_some_requests_are_drawn_with_missing_values_and_padding_never_is() -> None:
    spec, rng = TensorSpec("x", "float32", ("batch", "time"), nan=True), torch.Generator().manual_seed(0)
    shares = [draw_inputs([spec], 50, rng)[0].isnan().float().mean() for _ in range(20)]

    assert 3 < sum(share == 0 for share in shares) < 17
    assert 0.05 < max(shares) < 0.6
    pad = poisoned_padding("random", rng)
    assert not any(pad([torch.zeros(1)], spec, Bucket(2, 9)).isnan().any() for _ in range(9))
