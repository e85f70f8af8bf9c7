"""`examples/streaming` with little training: typed byte by byte, plotted, compared and cleaned up."""

import re
import shlex
from pathlib import Path

import pytest
from example_runs import run_example

pytestmark = pytest.mark.ci

FOLDER = Path(__file__).parents[2] / "examples" / "streaming"
TEXT = "If x is."
LINE = re.compile(r"^(\S) +(\d+\.\d) ━+$", re.MULTILINE)
SUMS = re.compile(r"^([\d.]+) bits for (\d+) bytes, one at a time; ([\d.]+) bits in one request$", re.MULTILINE)


@pytest.mark.long
def test_a_text_is_typed_and_adds_up_to_the_whole(temporary: Path) -> None:
    shown = run_example(FOLDER / "run.py", "--steps", "5", "--kill", TEXT, temporary=temporary, seconds=300)

    plotted = LINE.findall(shown)
    assert "".join(sign for sign, _ in plotted) == TEXT.replace(" ", "·")
    ((typed, count, whole),) = SUMS.findall(shown)
    assert int(count) == len(TEXT)
    assert float(typed) == pytest.approx(float(whole), abs=1e-3)
    assert sum(float(bits) for _, bits in plotted) == pytest.approx(float(whole), abs=0.05 * len(TEXT))
    assert "(killed worker process " in shown
    assert '"sessions": 1,' in shown


def test_the_readmes_commands_are_those_of_the_example() -> None:
    readme = (FOLDER / "README.md").read_text()
    (words,) = re.findall(r"^torch-model-archiver (.*?[^\\])$", readme, re.MULTILINE | re.DOTALL)
    program = (FOLDER / "run.py").read_text()

    for option in re.findall(r"--[\w-]+(?: [\w./]+)?", " ".join(shlex.split(words.replace("\\\n", " ")))):
        assert option in program or option == "--model-name typing"
    for name in re.findall(r"^\| `([\w./-]+)` \|", readme, re.MULTILINE):
        assert (FOLDER / name).is_file()
