"""`make fuzz MINUTES=10`: requests, manifests, records and tokens of sessions from a fuzzer guided by coverage.

`targets.py` states the property of each that must hold. The search starts from well-formed inputs and from those that
showed a defect once, changes fields, sizes, types, headers and nesting, and prefers inputs that reach new code.
`fuzz-findings` gets an input for each cause of a violation, with its traceback; then the exit code is 1. It needs the
extra `fuzz`, which has wheels for Linux on x86-64; the tests replay the kept inputs without it.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[2]
SHARES = {"requests": 0.7, "manifests": 0.1, "records": 0.1, "tokens": 0.1}
"""The share of the time that each target gets."""
INSTRUMENTED = ("handlers", "config", "sessions", "bucketing.shapes")
LIMITS = ("-max_len=16384", "-timeout=60", "-report_slow_units=60", "-rss_limit_mb=4096", "-len_control=0")
"""libFuzzer ends a process at an input that takes more: the next process goes on."""
MOST_STARTS = 20


def main() -> int:
    """Fuzz the targets one after the other; returns 1 if an input violates a property."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of all targets together (default: %(default)s)")
    parser.add_argument("--target", choices=list(SHARES), action="append", help="only this target; may be repeated")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"), help="folder (default: %(default)s)")
    options = parser.parse_args()
    if find_spec("atheris") is None:
        print("not installed: atheris. Run pip install -c constraints.txt -e '.[fuzz]'", file=sys.stderr)
        return 2
    names = options.target or list(SHARES)
    whole = sum(SHARES[name] for name in names)
    for name in names:
        (options.findings / name).mkdir(parents=True, exist_ok=True)
        fuzz(name, 60 * options.minutes * SHARES[name] / whole, options.findings / name)
    findings = sorted(path for path in options.findings.glob("*/*") if path.suffix != ".txt")
    for path in findings:
        told = path.with_suffix(".txt")
        print(f"{path}: {told.read_text().partition(chr(10))[0] if told.exists() else 'it ended the process'}")
    print(f"{len(findings)} inputs violate a property")
    return 1 if findings else 0


def fuzz(name: str, seconds: float, findings: Path) -> None:
    """Fuzz one target; a process that ends before its time is followed by another one."""
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="fuzz-") as corpus:
        for start in range(1, 1 + MOST_STARTS):
            rest = max(1, round(end - time.monotonic()))
            limits = (*LIMITS, f"-max_total_time={rest}", f"-seed={start}", f"-artifact_prefix={findings}/")
            command = [sys.executable, "-m", "tools.fuzz", "search", name, str(findings), corpus, *limits]
            done = subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
            if done.returncode == 0 or time.monotonic() + 1 > end:
                return


def search(name: str, findings: Path, corpus: Path, limits: list[str]) -> None:
    """Search until the limits of libFuzzer end the process; inputs that violate the property are kept."""
    import atheris

    # instructions are added to each function of the decoders as it is imported
    with atheris.instrument_imports(include=[f"torchserve_neuron_lstm.{part}" for part in INSTRUMENTED]):
        from .mutation import mutate
        from .targets import TARGETS, inputs
    logging.getLogger("torchserve_neuron_lstm").addHandler(logging.NullHandler())
    target = TARGETS[name]
    for number, content in enumerate(inputs(name).values()):
        (corpus / f"seed{number}").write_bytes(content)

    def check(content: bytes) -> None:
        try:
            target.check(content)
        except Exception as error:  # noqa: BLE001 - whatever a decoder raises is a finding
            keep(findings, content, error)

    def mutated(content: bytes, most: int, seed: int) -> bytes:
        random = Random(seed)

        def change(part: bytes, words: Sequence[str]) -> bytes:
            by_words = words and random.random() < 0.85
            return mutate(part, words, random) if by_words else bytes(atheris.Mutate(part, most))

        return target.mutate(content, change, random)[:most]

    atheris.Setup([sys.argv[0], *limits, str(corpus)], check, custom_mutator=mutated)
    atheris.Fuzz()


def keep(findings: Path, content: bytes, error: BaseException) -> None:
    """Write the first input of each cause, which is the line that raised, with its traceback."""
    (*_, frame) = traceback.extract_tb(error.__traceback__) or [None]
    where = f"{Path(frame.filename).name}:{frame.lineno}" if frame else ""
    is_property = type(error).__name__ == "PropertyViolation"  # all are raised at the same line
    cause = str(error) if is_property else f"{type(error).__name__} at {where}"
    path = findings / f"{blake2b(cause.encode(), digest_size=6).hexdigest()}.input"
    if not path.exists():
        path.write_bytes(content)
        told = f"{cause}\n{''.join(traceback.format_exception(error))}"
        path.with_suffix(".txt").write_text(told, "utf-8", "backslashreplace")


if __name__ == "__main__":
    if sys.argv[1:2] == ["search"]:
        search(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]), sys.argv[5:])
    else:
        sys.exit(main())
