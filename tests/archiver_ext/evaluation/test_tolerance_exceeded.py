"""The message for an engine that differs from eager mode."""

from __future__ import annotations

from torchserve_neuron_lstm.archiver_ext.evaluation.tolerance_exceeded import ToleranceExceeded
from torchserve_neuron_lstm.archiver_ext.evaluation.verify import VerificationResult
from torchserve_neuron_lstm.bucketing.shapes import Bucket


def test_rows_that_agree_alone_only_are_explained() -> None:
    """The table of a miss ends with what it means."""
    alone, both = (VerificationResult(Bucket(rows, 4), 1.0, ratio, "y") for rows, ratio in ((1, 0.5), (2, 9.0)))

    assert "right alone, but not in a batch" in str(ToleranceExceeded("eager", [alone, both], (1e-5, 1e-5)))
    assert "right alone" not in str(ToleranceExceeded("eager", [both], (1e-5, 1e-5)))
