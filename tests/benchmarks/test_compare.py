"""The comparison of two commits: pairs, the code that runs, the report of a slower commit."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from benchmarks.compare import race as race_module
from benchmarks.compare.__main__ import main
from benchmarks.compare.archive import refuse_other_code, share_costs
from benchmarks.compare.figures import FIGURES, Compared, SideName, missed
from benchmarks.compare.process import Child, ChildFailed, environment
from benchmarks.compare.race import best_of, check, orders
from benchmarks.compare.report import print_run, remarks, to_json
from benchmarks.compare.same_work import OtherWork, refuse_other_work
from benchmarks.compare.sides import NoSuchCommit, Side, checked_out
from benchmarks.packaging import CannotArchive
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

ROOT = Path(__file__).parents[2]
HOT = [figure.name for figure in FIGURES if figure.kind == "hot_path"]
SCRIPT = """\
import torchserve_neuron_lstm

def whole_batches(count):
    def work():
        sum(range(ROUNDS))
        return [b"answer"] * count
    return dict.fromkeys(NAMES, work)
""".replace("NAMES", repr(HOT))
HANDLER = """\
import importlib, sys
from pathlib import Path

class NeuronLstm:
    def initialize(self, context):
        sys.path.insert(0, context.system_properties["model_dir"])
        importlib.import_module("torchserve_neuron_lstm")

    def handle(self, data, context):
        for index in range(len(data)):
            context.set_response_status(STATUS, "", index)
        return [b"[1.0]"] * len(data)
"""


def repository(root: Path, rounds: int = 20_000) -> Path:
    """A git repository with a package and a hot path of `rounds` rounds."""
    files = {
        "src/torchserve_neuron_lstm/__init__.py": "",
        "benchmarks/hot_path.py": SCRIPT.replace("ROUNDS", str(rounds)),
        ".gitignore": "__pycache__\nignored\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git(root, "init", "--quiet")
    commit(root)
    return root


def commit(root: Path) -> None:
    """Commit all changes."""
    git(root, "add", "--all")
    git(root, "-c", "user.name=A", "-c", "user.email=a@example.com", "commit", "--quiet", "--message", "A change")


def git(root: Path, *arguments: str) -> str:
    """The output of a git command."""
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout


def archive(folder: Path, status: int = 200) -> Path:
    """The files of an unpacked archive that a child needs."""
    (folder / "MAR-INF").mkdir(parents=True)
    (folder / "MAR-INF" / "MANIFEST.json").write_text("{}")
    (folder / "torchserve_neuron_lstm").mkdir()
    (folder / "torchserve_neuron_lstm" / "__init__.py").write_text("")
    (folder / "neuron_lstm.py").write_text(HANDLER.replace("STATUS", str(status)))
    return folder


def compared(head: float, floor_of: str = "ids_json", share: float = 1.0) -> Compared:
    """Twenty pairs in which the head takes a multiple of the time of the base."""
    figure = next(one for one in FIGURES if one.name == floor_of)
    return Compared(figure, {"base": [1.0] * 20, "head": [head] * 20}, share)


def test_too_few_pairs_are_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """The program refuses a number of pairs that gives no interval."""
    with pytest.raises(SystemExit):
        main(["HEAD", "--pairs", "5"])
    assert "6 are the fewest" in capsys.readouterr().err


@given(st.integers(0, 60), st.randoms(use_true_random=False))
def test_both_sides_begin_equally_often(pairs: int, source: random.Random) -> None:
    """The order is random."""
    found = orders(pairs, source)

    assert len(found) == pairs
    assert abs(found.count(("base", "head")) - found.count(("head", "base"))) == pairs % 2
    assert len(set(map(tuple, (orders(40, random.Random(seed)) for seed in range(5))))) == 5


def test_sides_take_turns_and_the_best_turn_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The turns of a figure begin with each side alternately, are spread, and run on the core of the pair."""
    asked: list[tuple[str, str, int | None]] = []

    class _Told:
        def __init__(self, name: str, values: list[float]) -> None:
            self.name, self.values = name, iter(values)

        def measure(self, figure: str, core: int | None) -> tuple[float, float]:
            asked.append((self.name, figure, core))
            return next(self.values), 0.5

    monkeypatch.setattr(race_module, "TURNS", 2)
    children: Any = {"base": _Told("base", [4, 20, 3, 50]), "head": _Told("head", [9, 80, 7, 60])}
    found = best_of(children, ("head", "base"), ["a", "b"], 3)

    assert found == {"a": {"base": (3, 0.5), "head": (7, 0.5)}, "b": {"base": (20, 0.5), "head": (60, 0.5)}}
    turns = [("head", "a"), ("base", "a"), ("head", "b"), ("base", "b")]
    turns += [("base", "a"), ("head", "a"), ("base", "b"), ("head", "b")]
    assert asked == [(side, figure, 3) for side, figure in turns]


@pytest.mark.parametrize(
    ("rounds", "code", "told"), [(40_000, 1, "slower"), (10_000, 0, "within")], ids=["slower", "faster"]
)
def test_a_slower_commit_misses_its_floor(
    rounds: int,
    code: int,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A hot path of twice the work is reported as slower, one of half the work is not; no files remain."""
    monkeypatch.setattr(race_module, "TURNS", 1)
    root, file = repository(tmp_path / "repository"), tmp_path / "run.json"
    (root / "benchmarks" / "hot_path.py").write_text(SCRIPT.replace("ROUNDS", str(rounds)))

    assert main(["HEAD", "--only", "hot_path", "--pairs", "6", "--json", str(file)], root) == code

    found = json.loads(file.read_text())
    assert [(one["name"], one["verdict"]) for one in found["figures"]] == [(name, told) for name in HOT]
    assert found["about"]["head"] == "the working tree"
    printed = capsys.readouterr().out.splitlines()
    assert [line.startswith("missed: ") for line in printed].count(True) == (len(HOT) if code else 0)
    assert (printed[-1] == "every floor holds") == (code == 0)
    assert len(git(root, "worktree", "list").splitlines()) == 1


def test_each_child_runs_its_own_commits_code(tmp_path: Path) -> None:
    """Script and package are those of the checkout, not the installed ones, and differ by commit."""
    root = repository(tmp_path / "repository")
    (root / "src" / "torchserve_neuron_lstm" / "__init__.py").write_text("AGAIN = True\n")
    commit(root)

    with checked_out(root, "HEAD~1", "HEAD", tmp_path) as (base, head):
        with (
            Child("hot_path", base.root, base.root, None) as before,
            Child("hot_path", head.root, head.root, None) as changed,
        ):
            sides: dict[SideName, Side] = {"base": base, "head": head}
            check("hot_path", sides, {"base": base.root, "head": head.root}, {"base": before, "head": changed})
            told = [Path(child.about()["package"]) for child in (before, changed)]
        texts = [(package / "__init__.py").read_text() for package in told]

    assert texts == ["", "AGAIN = True\n"]
    assert not base.root.exists()


def test_code_from_elsewhere_is_refused(tmp_path: Path) -> None:
    """A checkout without the package would be measured with the installed package."""
    root = repository(tmp_path / "repository")
    git(root, "rm", "-r", "--quiet", "src")
    commit(root)

    with pytest.raises(ChildFailed, match=r"head .* not its own"):
        main(["HEAD~1", "HEAD", "--only", "hot_path", "--pairs", "6"], root)


def test_a_child_that_fails_tells_why(tmp_path: Path) -> None:
    """The message has the child's output, and the checkouts are removed."""
    root = repository(tmp_path / "repository")
    (root / "benchmarks" / "hot_path.py").write_text("raise RuntimeError('cold')\n")

    with pytest.raises(ChildFailed, match="cold"):
        main(["HEAD", "--only", "hot_path", "--pairs", "6"], root)
    assert len(git(root, "worktree", "list").splitlines()) == 1


def test_the_working_tree_is_copied_as_it_stands(tmp_path: Path) -> None:
    """Edited and new files are in the copy; deleted files, ignored files and later edits are not."""
    root = repository(tmp_path / "repository")
    (root / "gone").write_text("")
    commit(root)
    (root / "gone").unlink()
    for name in ("new", "ignored", "benchmarks/hot_path.py"):
        (root / name).write_text("edited")
    (root / "link").symlink_to("new")

    with checked_out(root, "HEAD", None, tmp_path) as (base, head):
        (root / "new").write_text("later")
        copied = {name: (head.root / name).is_file() for name in ("new", "link", "ignored", "gone")}
        assert (head.root / "new").read_text() == (head.root / "benchmarks" / "hot_path.py").read_text() == "edited"
        assert (head.root / "link").is_symlink()
        assert (base.root / "gone").is_file()

    assert copied == {"new": True, "link": True, "ignored": False, "gone": False}


def test_a_commit_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The error has git's words; a name that looks like an option is taken as a name."""
    root = repository(tmp_path / "repository")
    for name in ("nowhere", "--force"):
        with pytest.raises(NoSuchCommit, match=name), checked_out(root, name, None, tmp_path):
            pass


def test_a_checkout_comes_before_everything_else() -> None:
    """The checkout's package comes first, then its scripts, then the inherited path."""
    made = environment(Path("/checkout"), {"PYTHONPATH": "/other", "OMP_WAIT_POLICY": "active", "A": "b"})

    assert made["PYTHONPATH"] == "/checkout/src:/checkout:/other"
    assert (made["OMP_WAIT_POLICY"], made["A"]) == ("active", "b")
    assert environment(Path("/checkout"), {})["OMP_WAIT_POLICY"] == "passive"


def test_the_hot_path_has_every_figure(tmp_path: Path) -> None:
    """Names and answer sizes are the same for a script from before `whole_batches`."""
    text = (ROOT / "benchmarks" / "hot_path.py").read_text("utf-8")
    assert "def whole_batches(" in text
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "hot_path.py").write_text(text.replace("def whole_batches(", "def other("), "utf-8")
    with Child("hot_path", ROOT, ROOT, None) as now, Child("hot_path", ROOT, tmp_path, None) as older:
        sizes, olds = now.about(), older.about()

    assert set(sizes["answer_bytes"]) == set(olds["answer_bytes"]) == set(HOT)
    assert all(size > 32 * 16 * 4 for size in sizes["answer_bytes"].values())
    refuse_other_work("hot_path", sizes, olds)


def test_an_archive_is_served_by_its_own_handler(tmp_path: Path) -> None:
    """Its package is the archive's; CPU time is measured."""
    folder = archive(tmp_path / "archive")
    with Child("archive", tmp_path, folder, None) as child:
        told = child.about()
        value, _ = child.measure("core_ms", None)

    assert Path(told["package"]) == folder / "torchserve_neuron_lstm"
    assert Path(told["script"]) == folder / "neuron_lstm.py"
    assert told["answers"] == ["[1.0]"] * 112
    assert value > 0


def test_an_archive_that_refuses_is_not_measured(tmp_path: Path) -> None:
    """A refusal takes less time than an answer, so it is not timed."""
    with (
        Child("archive", tmp_path, archive(tmp_path / "archive", status=400), None) as child,
        pytest.raises(ChildFailed, match="refuses requests"),
    ):
        child.about()


def test_other_work_is_refused() -> None:
    """Other numbers, other keys and answers of another size are other work; rounding differences are not."""
    same = {"answers": ['{"scores": [1.0, 2.0]}'], "answer_bytes": {"ids_json": 1000}}
    near = {"answers": ['{"scores": [1.00001, 2.0]}'], "answer_bytes": {"ids_json": 1010}}
    refuse_other_work("archive", same, near)
    refuse_other_work("hot_path", same, near)

    for other in ('{"scores": [1.1, 2.0]}', '{"scores": [1.0]}', '{"error": "no"}', '{"marks": [1.0, 2.0]}'):
        with pytest.raises(OtherWork, match="request 0"):
            refuse_other_work("archive", same, {"answers": [other]})
    with pytest.raises(OtherWork, match="ids_json"):
        refuse_other_work("hot_path", same, {"answer_bytes": {"ids_json": 500}})


def test_both_archives_plan_by_the_same_costs(tmp_path: Path) -> None:
    """The costs are those of the base; costs of other buckets are not changed, and the report says so."""

    def made(name: str, milliseconds: float, rows: int) -> Path:
        cost = {"bucket": {"batch": rows}, "milliseconds": milliseconds}
        (tmp_path / name).mkdir()
        text = json.dumps({"format": 1, "costs": [cost], "padding_costs": []})
        (tmp_path / name / "variants.json").write_text(text)
        return tmp_path / name

    base, head, other = made("base", 1.5, 8), made("head", 2.5, 8), made("other", 2.5, 4)

    assert share_costs(base, head)
    assert (head / "variants.json").read_text() != (base / "variants.json").read_text()
    assert json.loads((head / "variants.json").read_text()) == json.loads((base / "variants.json").read_text())
    assert not share_costs(base, other)
    assert json.loads((other / "variants.json").read_text())["costs"][0]["milliseconds"] == 2.5


def test_an_archive_of_other_code_is_refused(tmp_path: Path) -> None:
    """A file that differs is named, and an archive without the package is refused."""
    side = Side("base", "abc A change", repository(tmp_path / "repository"))
    folder = archive(tmp_path / "archive")
    refuse_other_code(folder, side)

    (folder / "torchserve_neuron_lstm" / "__init__.py").write_text("OTHER = True")
    with pytest.raises(CannotArchive, match=r"__init__\.py"):
        refuse_other_code(folder, side)
    (folder / "torchserve_neuron_lstm" / "__init__.py").unlink()
    with pytest.raises(CannotArchive, match="no file"):
        refuse_other_code(folder, side)


def test_floors_are_three_percent_of_the_hot_path_and_five_of_the_archive() -> None:
    """A ratio at the floor is accepted; one above it is missed and named."""
    assert missed([compared(1.03), compared(1.05, "core_ms"), compared(0.5)]) == []
    assert missed([compared(1.031), compared(1.051, "core_ms")]) == [
        "missed: token ids as JSON: 1.031 (1.031 to 1.031), at most 1.03: slower",
        "missed: archive: 1.051 (1.051 to 1.051), at most 1.05: slower",
    ]


def test_a_run_is_told_to_people_and_machines(tmp_path: Path) -> None:
    """The report has the compared commits and the reasons for doubt."""
    sides: dict[SideName, Side] = {
        "base": Side("base", "abc A change", tmp_path),
        "head": Side("head", "the working tree", tmp_path),
    }
    found = [compared(1.02), compared(1.2, "core_ms", share=0.5)]
    console = Console(width=80)
    with console.capture() as capture:
        print_run(sides, found, 20, console)
    told = to_json(sides, found, {"pairs": 20})

    rows = [line.split() for line in capture.get().splitlines() if "1.20" in line]
    assert rows == [["archive", "1.000", "1.200", "1.200", "(1.200", "to", "1.200)", "1.05", "slower"]]
    assert told["about"] == {"pairs": 20, "base": "abc A change", "head": "the working tree"}
    assert [one["verdict"] for one in json.loads(json.dumps(told))["figures"]] == ["within", "slower"]
    assert any("50%" in line for line in remarks(sides, found, 20))
    assert any("trial" in line for line in remarks(sides, found, 6))
    assert len(remarks(sides, [compared(1.0)], 20)) == 2
