import gc
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from native_layers import Shape, answers_of, batch_for, isas_here, kernel, stack_of

from torchserve_neuron_lstm.backends.interface import LoadError
from torchserve_neuron_lstm.backends.native import build
from torchserve_neuron_lstm.backends.native.instruction_sets import fastest_library
from torchserve_neuron_lstm.backends.native.library import RecurrentLibrary, ThreadPool

pytestmark = pytest.mark.xdist_group(f"kernel-{isas_here()[0]}")
SHAPE = Shape(hidden=17, layers=2, directions=2)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("kernel")
    build.build(directory)
    return directory / fastest_library(directory)


def in_process(file: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a separate process that has the layers `stack` and the batch `batch`."""
    begin = f"""
import gc, os, resource, signal, sys, threading, time
from pathlib import Path
import torch
sys.path.insert(0, {str(Path(__file__).parents[2] / "support")!r})
from native_layers import Shape, answers_of, batch_for, stack_of
from torchserve_neuron_lstm.backends.native.library import RecurrentLibrary, ThreadPool
library = RecurrentLibrary(Path({str(file)!r}))
shape = Shape(hidden=17, layers=2, directions=2)
pool = ThreadPool(library, 3)
stack, batch = stack_of(shape, shape.core(), pool), batch_for(shape, [9, 4] * 12, 9)
"""
    command = [sys.executable, "-c", begin + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def threads_here() -> set[str]:
    return {thread.name for thread in Path("/proc/self/task").iterdir()}


@pytest.mark.parametrize("part", [0.0, 0.001, 0.1, 0.5, 0.95, 0.9999])
def test_a_torn_file_is_refused(file: Path, tmp_path: Path, part: float) -> None:
    """This holds for any length: the system's loader would map it, and a read would kill the process."""
    torn = tmp_path / "torn.so"
    torn.write_bytes(file.read_bytes()[: int(file.stat().st_size * part)])

    with pytest.raises(LoadError, match=r"torn\.so cannot be loaded: it is truncated: .*\. Package the model"):
        RecurrentLibrary(torn)


def test_what_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_bytes(b"\0" * 1000)
    with pytest.raises(LoadError, match=r"text\.so cannot be loaded: .*invalid ELF header"):
        RecurrentLibrary(tmp_path / "text.so")
    with pytest.raises(LoadError, match=r"none\.so cannot be loaded: .*No such file"):
        RecurrentLibrary(tmp_path / "none.so")


def test_another_library_is_refused(tmp_path: Path) -> None:
    """It has none of the recurrent library's functions."""
    source, other = tmp_path / "other.cpp", tmp_path / "other.so"
    source.write_text("int other() { return 1; }\n")
    subprocess.run(["g++", "-shared", "-fPIC", str(source), "-o", str(other)], check=True)

    with pytest.raises(LoadError, match=r"other\.so cannot be loaded: .*undefined symbol: recurrence_"):
        RecurrentLibrary(other)


def test_a_relative_path_is_a_file_of_this_folder(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system library of that name is not used."""
    monkeypatch.chdir(file.parent)

    assert RecurrentLibrary(Path(file.name)).lanes == RecurrentLibrary(file).lanes


def test_threads_end_with_the_last_that_uses_them() -> None:
    """Layers keep their threads."""
    started: set[str] = set()
    for _ in range(10):
        before = threads_here()
        pool = ThreadPool(kernel(isas_here()[0]), 4)
        stack = stack_of(SHAPE, SHAPE.core(), pool)
        own = threads_here() - before
        assert len(own) == 3
        del pool
        gc.collect()
        assert own <= threads_here()
        assert len(answers_of(stack, batch_for(SHAPE, [3, 9], 9))) == 3
        del stack
        gc.collect()
        started |= own
    deadline = time.monotonic() + 10  # an ended thread is listed for a moment
    while started & threads_here() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not started & threads_here()


@pytest.mark.parametrize("woken", [False, True], ids=["asleep", "woken without work"])
def test_threads_that_wait_compute_the_next_call(woken: bool) -> None:
    threads = ThreadPool(kernel(isas_here()[0]), 3)
    stack = stack_of(SHAPE, SHAPE.core(), threads)
    batch = batch_for(SHAPE, [9, 4] * 12, 9)
    before = answers_of(stack, batch)
    for pause in (0.0, 0.0004, 0.0005, 0.0006, 0.01):
        if woken:
            time.sleep(0.002)
            threads.wake()
        time.sleep(pause)
        assert all(torch.equal(one, two) for one, two in zip(answers_of(stack, batch), before, strict=True))


@pytest.mark.ci
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="not run: a process with one core has no other one")
def test_threads_that_slept_leave_the_callers_core_to_it(file: Path) -> None:
    """They would wake there, and wait for the caller by spinning on its core; they may use all others."""
    done = in_process(
        file,
        """
cores = os.sched_getaffinity(0)
others = [int(name) for name in os.listdir("/proc/self/task") if int(name) != os.getpid()]
for core in cores:
    os.sched_setaffinity(0, {core})
    until = time.monotonic() + 60
    while sum(os.sched_getaffinity(one) == cores - {core} for one in others) < 2:
        assert time.monotonic() < until, [os.sched_getaffinity(one) for one in others]
        time.sleep(0.01)
        pool.wake()
        answers_of(stack, batch)
""",
    )

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.ci
@pytest.mark.few(1)
@pytest.mark.parametrize("code", ["answers_of(stack, batch)", "sys.exit(0)"], ids=["idle", "never used"])
def test_a_process_ends_with_its_threads(file: Path, code: str) -> None:
    ended = in_process(file, code)

    assert (ended.returncode, ended.stderr) == (0, "")


QUIET = {
    # Memory that the thread reads stays valid until the end. The thread calls only the recurrent library: torch
    # aborts such a process.
    "ends while another thread computes": """
y, h_n, c_n = answers_of(stack, batch)
numbers = (stack.handle, *y.shape[:2], batch.lengths.data_ptr(), None, 0, batch.x.data_ptr(), *batch.x.stride()[:2])
numbers += (batch.h_0.data_ptr(), batch.c_0.data_ptr(), y.data_ptr(), *y.stride()[:2], h_n.data_ptr(), c_n.data_ptr())

def compute(run=stack._run):
    while True:
        run(*numbers)

for _ in range(3):
    threading.Thread(target=compute, daemon=True).start()
time.sleep(0.2)
""",
    "signals": """
rang = []
signal.signal(signal.SIGALRM, lambda *_: rang.append(1))
before = answers_of(stack, batch)[0]
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
while len(rang) < 50:
    assert torch.equal(answers_of(stack, batch)[0], before)
signal.setitimer(signal.ITIMER_REAL, 0)
""",
}


@pytest.mark.ci
@pytest.mark.parametrize("code", QUIET.values(), ids=QUIET.keys())
def test_a_process_ends_without_a_word(file: Path, code: str) -> None:
    ended = in_process(file, code)

    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.ci
def test_a_fork_computes_alone(file: Path) -> None:
    ended = in_process(
        file,
        """
before = answers_of(stack, batch)[0]
child = os.fork()
if child == 0:
    same = torch.equal(answers_of(stack, batch)[0], before)
    other = stack_of(shape, shape.core(), ThreadPool(library, 2))
    same = same and torch.equal(answers_of(other, batch)[0], before)
    del stack, pool, other
    gc.collect()
    sys.exit(0 if same else 5)
print(os.waitpid(child, 0)[1], torch.equal(answers_of(stack, batch)[0], before))
""",
    )

    assert (ended.returncode, ended.stdout.strip()) == (0, "0 True"), ended.stderr


@pytest.mark.ci
def test_more_threads_than_the_system_has_are_refused(file: Path) -> None:
    ended = in_process(
        file,
        """
before = len(os.listdir("/proc/self/task"))
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
try:
    ThreadPool(library, 5000)
except Exception as error:
    print(type(error).__name__, error)
print(len(os.listdir("/proc/self/task")) - before)
""",
    )

    assert ended.returncode == 0, ended.stderr
    refusal, more = ended.stdout.splitlines()
    assert refusal.startswith("LoadError the system cannot start 5000 threads: raise its limit (ulimit -u")
    assert more == "0"


@pytest.mark.ci
def test_memory_that_is_not_there_is_told(file: Path) -> None:
    ended = in_process(
        file,
        """
before = answers_of(stack, batch)[0]
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
rows, steps = 20, 400_000  # answers and what is between layers: 1.1 GB each
resource.setrlimit(resource.RLIMIT_AS, (used + 1_700_000_000, used + 1_700_000_000))
x, states = torch.zeros(1, 1, 5).expand(rows, steps, 5), torch.zeros(4, rows, 17)
try:
    stack.run(x, torch.ones(rows, dtype=torch.int64), states, states)
except MemoryError as error:
    print(error)
print(torch.equal(answers_of(stack, batch)[0], before))
""",
    )

    assert ended.stdout.splitlines() == ["out of memory for recurrences over 20 x 400000 timesteps", "True"], (
        ended.stderr
    )
