#!/bin/sh
# Tests and benchmark of the engine `cuda` from a checkout, on a machine with an NVIDIA GPU. Nothing is downloaded.
# Needs a Python (3.10 or later) with a CUDA build of torch (2.11 or later); pytest where the tests shall run.
# PYTHON names the interpreter; PYTHONPATH may add a folder that has pytest. It takes less than ten minutes. A part that
# fails or takes too long leaves the others; the last lines say what was run. Exits 1 if not all of it passed.
set -u
cd "$(dirname "$0")/../.." || exit 1
PYTHON=${PYTHON:-python3}
export PYTHONPATH="src:tests/support:examples:.${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=ignore
summary=""
status=0

note() { # a line of the summary
    summary="$summary
$1"
}

part() { # name, seconds, command
    name=$1 seconds=$2
    shift 2
    echo "== $name"
    timeout -k 10 "$seconds" "$@"
    code=$?
    case $code in
    0) note "$name: passed" ;;
    124 | 137) note "$name: stopped after $seconds seconds"; status=1 ;;
    *) note "$name: failed (exit code $code)"; status=1 ;;
    esac
}

"$PYTHON" - <<'EOF' || exit 1
import sys
try:
    from torchserve_neuron_lstm.backends.cuda.torch_device import gpu_missing, gpu_name
except ImportError as error:
    sys.exit(f"not run: {error}: {sys.executable} needs torch, and the links in src/ must be there")
missing = gpu_missing()
if missing:
    sys.exit(f"not run: {missing}")
import torch
print(f"{gpu_name(None)}, torch {torch.__version__}, CUDA {torch.version.cuda}, Python {sys.version.split()[0]}")
EOF
if "$PYTHON" -c 'import pytest' 2>/dev/null; then
    # Without the project's configuration, which needs plugins.
    part tests 240 "$PYTHON" -m pytest -c /dev/null --rootdir=. --noconftest -p no:cacheprovider -q -rs tests/gpu
else
    note "tests: not run, $PYTHON has no pytest"
    status=1
fi
part benchmark 330 "$PYTHON" -m benchmarks.gpu
echo "== summary$summary"
exit $status
