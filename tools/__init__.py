"""Measuring and stressing this project. Nothing here is installed."""

import sys
from pathlib import Path

# The package as it stands, what examples share, and doubles and servers of the tests.
sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("src", "examples", "tests/support")]
