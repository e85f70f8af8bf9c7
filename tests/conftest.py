"""Settings that all tests share."""

import gc
import os
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The folder `tools/` as a package, without making the repository's other files importable.
_TOOLS = ModuleSpec("tools", None, is_package=True)
_TOOLS.submodule_search_locations = [str(Path(__file__).parents[1] / "tools")]
sys.modules.setdefault("tools", module_from_spec(_TOOLS))

# Test processes share the cores: threads that wait for each other cost more time than they save. The variable is set
# before torch is imported, and processes started by the tests inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Torch, its compilers and the caches of tests are millions of objects that stay. Python searches them for garbage after
# each 700 new ones: a tenth of the time of all tests. Packaging sets the same threshold (`archiver_ext/supervise.py`).
gc.set_threshold(10_000)

# A shell starts programs in the background with SIGINT ignored. Python leaves it so, and so do the commands that tests
# start and interrupt. A handler of Python is not inherited: with it, a command starts as one in the foreground does.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine with two cores is slow now and then; that is no failure of a test. What fails prints how to repeat it.
# A change is accepted or refused by the same values each time: what new values find is no fault of the change.
settings.register_profile(
    "project",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
settings.register_profile("many", settings.get_profile("project"), max_examples=2000, derandomize=False)
settings.load_profile("project")


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of the searches for garbage."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _one_fork_server() -> Iterator[None]:
    """Keep the fork server of the first test that compiles in processes: it imports torch once for all of them."""
    from torchserve_neuron_lstm.backends.compilation.pool import fork_server

    with fork_server:
        yield


@pytest.fixture
def temporary() -> Iterator[Path]:
    """An empty folder for temporary files, with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="ts-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def failing_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that lets a program's file operations fail."""
    import failing_files

    return failing_files.build(tmp_path_factory.mktemp("library"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests that share a fixture on one worker; leave cases beyond those of `few` to CI."""
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("xdist_group") is None:
            made = [one for name in item.fixturenames for one in item._fixtureinfo.name2fixturedefs.get(name, ())]
            if any(one.scope == "module" and one.baseid for one in made):
                item.add_marker(pytest.mark.xdist_group(item.path.name))
        if item.get_closest_marker("few") is not None and item.get_closest_marker("long") is None:
            cases[item.nodeid.partition("[")[0]].append(item)
    for same in cases.values():
        number = next(same[0].iter_markers("few")).args[0]
        for place in set(range(len(same))) - _spread(number, len(same)):
            same[place].add_marker(pytest.mark.ci)


def _spread(number: int, length: int) -> set[int]:
    """Return this many places of a list, from its first to its last.

    >>> sorted(_spread(3, 9))
    [0, 4, 8]
    """
    return {round(step * (length - 1) / max(number - 1, 1)) for step in range(min(number, length))}
