#!/bin/sh
# Tests and benchmark of the engine `cuda` from a checkout, on a machine with an NVIDIA GPU. Nothing is downloaded.
# Needs a Python (3.10 or later) with a CUDA build of torch (2.11 or later); pytest and NumPy where the tests shall run.
# PYTHON names the interpreter. It takes less than ten minutes.
set -eu
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
export PYTHONPATH="src:tests/support:." PYTHONDONTWRITEBYTECODE=1
"$PYTHON" -c 'import torch' || { echo "not run: $PYTHON has no torch" >&2; exit 1; }
status=0
if "$PYTHON" -c 'import pytest' 2>/dev/null; then
    # Without the project's configuration, which needs plugins.
    "$PYTHON" -m pytest -c /dev/null --rootdir=. --noconftest -p no:cacheprovider -q -rs tests/gpu || status=1
else
    echo "tests: not run, $PYTHON has no pytest"
fi
"$PYTHON" -m benchmarks.gpu || status=1
exit $status
