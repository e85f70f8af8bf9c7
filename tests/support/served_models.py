"""Two models, and how they are packaged, for the tests with real servers."""

from pathlib import Path

from torchserve_neuron_lstm.backends.registry import get_backend

_ROOT = Path(__file__).parents[2]
TAGGER = _ROOT / "tests" / "e2e" / "models" / "tagger.py"
SCORER = _ROOT / "tests" / "e2e" / "models" / "scorer.py"

HAS_COMPILER = get_backend("inductor").unavailable() is None
NATIVE = "native" if HAS_COMPILER else "onnxruntime"
"""The engine that compiles a kernel for recurrences, if there is a C++ compiler."""

_FRAMES = "frames: {dtype: float32, shape: [batch, time, 3]}"


def tagging(buckets: str, *more: str) -> str:
    """The configuration of the tagger; `more` are further lines below `neuron_lstm`."""
    inputs = f"inputs: {{ids: {{dtype: int64, shape: [batch, time]}}, {_FRAMES}}}"
    return "\n".join([inputs, "lengths: lengths", "outputs: [tags, label]", f"buckets: {buckets}", *more])


def scoring(buckets: str, *more: str) -> str:
    """The configuration of the scorer; `more` are further lines below `neuron_lstm`."""
    inputs = f"inputs: {{{_FRAMES}}}"
    return "\n".join([inputs, "lengths: lengths", "outputs: [scores]", f"buckets: {buckets}", *more])


TAGGING = tagging("{batch: [1, 8], length: [16, 32]}", f"backend: {NATIVE}")
SCORING = scoring("{batch: [1, 8], length: [16, 32]}", "backend: onnxruntime")
