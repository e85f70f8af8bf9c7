import re
from pathlib import Path

import pytest
import yaml
from shown import blocks

from torchserve_neuron_lstm.backends import registry
from torchserve_neuron_lstm.backends.interface import Backend
from torchserve_neuron_lstm.config.load import parse_config

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "backends.md").read_text()
PACKAGE = ROOT / "tests" / "support" / "third_party_backend"
OURS = tuple(registry.ENGINES)


def rows(heading: str) -> dict[str, list[str]]:
    """The cells of the table whose first row begins with this text, by backend."""
    table = TEXT[TEXT.index(heading) :].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in table]
    return {name.strip("`"): others for name, *others in cells}


def code(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def takes(engine: Backend) -> list[str]:
    served = "each bucket" if not engine.polymorphic else "every shape" if engine.any_shape else "the grid's shapes"
    execution = "whole sequences or chunks"
    if engine.whole_sequences is not None:
        execution = "whole sequences; chunks for sessions"
    return [served, execution, code(engine.precisions), code(engine.options), tried(engine.name)]


def tried(name: str) -> str:
    if name in registry.auto_engines("float32"):
        return "yes"
    if name in registry.auto_engines("bfloat16"):
        return "with `precision: bfloat16`"
    return "as a fallback" if name in registry.auto_engines("fallback") else ""


def has(engine: Backend) -> list[str]:
    example = ROOT / "examples" / "cpp" / engine.name
    return [
        "in each program" if engine.inlines_weights else "separate",
        "yes" if type(engine).estimate_us is not Backend.estimate_us else "",
        "emulated" if type(engine).simulation is not Backend.simulation else "",
        f"[yes](../examples/cpp/{engine.name})" if example.is_dir() else "",
    ]


@pytest.mark.parametrize(("heading", "told"), [("| backend | one program", takes), ("| backend | weights", has)])
def test_the_tables_are_what_the_engines_say(heading: str, told: object) -> None:
    assert callable(told)
    assert rows(heading) == {name: told(registry.get_backend(name)) for name in OURS}


def test_every_engine_is_told_what_it_was_run_on() -> None:
    assert set(rows("| backend | in the tests")) == set(OURS)


def test_every_optional_member_is_described() -> None:
    described = re.findall(r"^\| (`.*`) \|", TEXT[TEXT.index("| member | meaning") :], re.MULTILINE)
    members = [name for name in vars(Backend) if not name.startswith("_") and name not in Backend.__abstractmethods__]
    shown = {
        "options",
        "polymorphic",
        "any_shape",
        "precisions",
        "unavailable",
        "host",
        "refusal",
    }  # with the example's code

    assert {name for row in described for name in re.findall(r"`([\w.]+)`", row)} == {
        *(name for name in members if name not in shown),
        *("program.chain", "program.wake"),
    }


def test_the_example_is_the_code_that_the_tests_install() -> None:
    package = PACKAGE / "src" / "neuron_lstm_numpy"
    sources = {name: (package / f"{name}.py").read_text() for name in ("backend", "operators")}
    shown = blocks(TEXT, "python")

    assert [block for block in shown if not any(block in source for source in sources.values())] == []
    methods = set(re.findall(r"^    def (\w+)", sources["backend"], re.MULTILINE))
    assert set(re.findall(r"^    def (\w+)", "".join(shown), re.MULTILINE)) == methods
    assert blocks(TEXT, "toml")[0] in (PACKAGE / "pyproject.toml").read_text()


def test_the_yaml_is_taken() -> None:
    needed = "inputs: {x: {dtype: float32, shape: [batch, time, 3]}}\nbuckets: {batch: [1], length: [4]}\n"
    inductor, auto = blocks(TEXT, "yaml")
    options, choice = (
        parse_config(yaml.safe_dump({"neuron_lstm": yaml.safe_load(needed + block)}), "model-config.yaml")
        for block in (inductor, auto)
    )

    assert options.engine == "inductor"
    assert options.compiler_args == ("-O3", "-fno-semantic-interposition")
    assert set(yaml.safe_load(inductor)) - {"backend"} == set(registry.get_backend("inductor").options)
    assert choice.engine == "auto"
    assert choice.auto.engines == ("native", "inductor")
