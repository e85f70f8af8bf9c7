"""Two models, and how they are packaged, for the tests with real servers."""

from pathlib import Path

from torchserve_neuron_lstm.backends.registry import get_backend

_ROOT = Path(__file__).parents[2]
TAGGER = _ROOT / "tests" / "e2e" / "models" / "tagger.py"
SCORER = _ROOT / "tests" / "e2e" / "models" / "scorer.py"

HAS_COMPILER = get_backend("inductor").unavailable() is None
NATIVE = "native" if HAS_COMPILER else "onnxruntime"
"""The engine that compiles a kernel for recurrences, if there is a C++ compiler."""

TAGGING = f"""
inputs:
  ids: {{dtype: int64, shape: [batch, time]}}
  frames: {{dtype: float32, shape: [batch, time, 3]}}
lengths: lengths
outputs: [tags, label]
buckets: {{batch: [1, 8], length: [16, 32]}}
backend: {NATIVE}
"""
SCORING = """
inputs: {frames: {dtype: float32, shape: [batch, time, 3]}}
lengths: lengths
outputs: [scores]
buckets: {batch: [1, 8], length: [16, 32]}
backend: onnxruntime
"""
