"""`make seeds`: every example runs here on a fast engine; each row has the engine and the verdict."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import torch
from neuron_doubles import on_path
from seeds import command_line, function, lstm, partitioned, streaming_lstm
from seeds.__main__ import EXAMPLES, Example, main
from seeds.engines import engine_named, what_runs
from seeds.row import row_of
from seeds.shown import Engine, Shown

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")


@pytest.mark.few(3)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_every_example_holds_on_eager(example: Example) -> None:
    row = row_of(example.name, example.show, Engine("eager"))

    assert (row.status, row.note) == ("ok", "")
    assert row.ran == "real engine"
    assert row.max_error is not None
    assert row.max_error <= 1e-5
    assert row.refused


@pytest.mark.ci
@pytest.mark.parametrize(
    ("example", "engine"),
    [
        (function, "neuron"),
        pytest.param(partitioned, "neuronx", marks=pytest.mark.long),
        pytest.param(function, "neuronx", marks=pytest.mark.long),
    ],
)
def test_examples_hold_on_doubles_of_awss_packages_which_are_called_so(example: ModuleType, engine: str) -> None:
    with on_path():
        row = row_of("example", example.show, engine_named(engine))

        assert (row.status, row.note) == ("ok", "")
        assert row.ran == "contract double"
    if example is partitioned:
        assert any("aten::sort are not supported" in line for line in row.refused)


@pytest.mark.skipif(find_spec("vollo_compiler") is None, reason="the extra [vollo] is not installed")
@pytest.mark.parametrize(("example", "latency_us"), [(lstm, 6.9), (streaming_lstm, 0.7)])
def test_vollos_examples_hold_on_its_vm(example: ModuleType, latency_us: float) -> None:
    row = row_of("example", example.show, engine_named("vollo"))

    assert (row.status, row.ran) == ("ok", "VM")
    assert row.latency_us == pytest.approx(latency_us, abs=0.05)


def off(engine: Engine) -> Shown:
    shown = Shown(engine)
    shown.compare(torch.tensor([1.0]), torch.tensor([1.1]))
    return shown


def nothing_refused(engine: Engine) -> Shown:
    shown = Shown(engine)
    shown.refuses(ValueError, lambda: None)
    return shown


def not_a_number(engine: Engine) -> Shown:
    shown = Shown(engine)
    shown.compare(torch.tensor([float("nan")]), torch.tensor([1.0]))
    return shown


@pytest.mark.parametrize(
    ("show", "note"),
    [
        (off, "differs from eager by 1.00e-01"),
        (not_a_number, "differs from eager"),
        (nothing_refused, "nothing was raised where ValueError is documented"),
    ],
)
def test_what_does_not_hold_is_a_failure_with_its_reason(show: Callable[[Engine], Shown], note: str) -> None:
    row = row_of("example", show, Engine("eager"))

    assert row.status == "failed"
    assert note in row.note


def test_the_runner_writes_rows_and_counts_only_what_ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.json"

    code = main(
        ["--example", "function", "--example", "lstm", "--engine", "eager", "--engine", "vollo", "--json", f"{file}"]
    )

    rows = {(row["example"], row["engine"]): row for row in json.loads(file.read_text())["rows"]}
    assert code == 0
    assert rows["function", "eager"]["status"] == "ok"
    assert len(rows["function", "eager"]["refused"]) == 2
    vollo = rows["lstm", "vollo"]
    if find_spec("vollo_compiler") is None:
        assert (vollo["status"], vollo["note"]) == ("not run", "extra [vollo] not installed (proprietary EULA)")
        assert "2 of 2 that ran hold, 1 were not run" in capsys.readouterr().out
    else:
        assert vollo["status"] == "ok"
        assert what_runs(engine_named("vollo")) in ("VM", "accelerator")


def test_a_failure_is_the_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("seeds.__main__.EXAMPLES", (Example("off", off, ("eager",), {}),))
    assert main([]) == 1
    assert "0 of 1 that ran hold" in capsys.readouterr().out
    monkeypatch.setattr("seeds.__main__.EXAMPLES", ())
    assert main([]) == 1


def test_an_example_is_run_by_itself_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(function.show, ["eager"]) == 0
    told = capsys.readouterr().out
    assert "eager (real engine): max error 0.0e+00, allowed 1e-05" in told
    assert "refused, as documented: input 'x' is float32 [4]" in told
