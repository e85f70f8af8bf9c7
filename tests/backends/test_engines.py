import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch
from recurrent import BATCH, CASES, GARBAGE, TIME, Several, exported, largest_error, several_inputs

from torchserve_neuron_lstm.backends.exported_tensors import weights_of
from torchserve_neuron_lstm.backends.interface import Backend, LoadedProgram, LoadError
from torchserve_neuron_lstm.backends.native.instruction_sets import fastest_library, instruction_sets
from torchserve_neuron_lstm.backends.registry import get_backend
from torchserve_neuron_lstm.backends.signature import signature_of
from torchserve_neuron_lstm.backends.versions import release, torch_version
from torchserve_neuron_lstm.backends.weights import read_weights
from torchserve_neuron_lstm.bucketing.shapes import Bucket

pytestmark = pytest.mark.timeout(300)

# Compiled once for all tests of an engine. The other engines' own tests are part of `make test` too.
ENGINES = [
    pytest.param("eager", marks=(pytest.mark.xdist_group("eager"), pytest.mark.ci), id="eager"),
    pytest.param("native", marks=(pytest.mark.xdist_group("native"), pytest.mark.ci), id="native"),
    pytest.param("onnxruntime", marks=pytest.mark.xdist_group("onnxruntime"), id="onnxruntime"),
    pytest.param("onnxruntime of others", marks=pytest.mark.ci, id="onnxruntime, other layers"),
]
if release(torch_version()) >= (2, 13):
    inductor = (pytest.mark.xdist_group("inductor"), pytest.mark.long)
    ENGINES.append(pytest.param("inductor", marks=inductor, id="inductor"))
# Each case is some seconds of a C++ compiler: those that go through all of the decomposition. So is ONNX's exporter.
FEW = {
    "inductor": (2, 5, 7, 10, 13),
    "onnxruntime": (0, 3, 5, 7, 10, 11, 13),
    "onnxruntime of others": (1, 2, 4, 6, 8, 9, 12, 14),
}
TABLE_BYTES = 100_000_000  # far above the allocator's own memory, which is counted too

COMPILE = """
import sys
from pathlib import Path
import torch
from torchserve_neuron_lstm.backends import recurrent_operators
from torchserve_neuron_lstm.backends.registry import get_backend
from torchserve_neuron_lstm.bucketing.shapes import Bucket
name, program, directory, batch, time = sys.argv[1:]
backend = get_backend(name)
bucket = None if backend.polymorphic else Bucket(int(batch), int(time))
backend.compile(torch.export.load(program), bucket, Path(directory))
"""

SERVE = """
import json, sys
from pathlib import Path
import torch
from torchserve_neuron_lstm.backends.registry import get_backend
from torchserve_neuron_lstm.backends.weights import read_weights
name, directory, host, *files = sys.argv[1:]
weights = {key: tensor for file in files for key, tensor in read_weights(Path(file)).items()}
run = get_backend(name).load(Path(directory), weights, json.loads(host), 1)
torch.save(list(run(torch.load(Path(directory).parent / "inputs.pt"))), Path(directory).parent / "answers.pt")
print(json.dumps([module for module in sys.modules if module.startswith(("torch._inductor", "onnx", "numpy"))]))
"""


@dataclass(frozen=True)
class Compiled:
    backend: Backend
    module: Several
    root: Path

    @property
    def directory(self) -> Path:
        return self.root / "program"

    @property
    def files(self) -> list[str]:
        return [str(self.root / "weights.pt"), str(self.root / "constants.pt")]

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: tensor for file in self.files for name, tensor in read_weights(Path(file)).items()}

    def load(self) -> LoadedProgram:
        return self.backend.load(self.directory, self.weights(), self.backend.host(), 1)


_compiled: dict[str, Compiled] = {}


@pytest.fixture(params=ENGINES)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    name: str = request.param
    if name not in _compiled:
        _compiled[name] = _compile(name, tmp_path_factory.mktemp(name))
    return _compiled[name]


def _compile(name: str, root: Path) -> Compiled:
    torch.manual_seed(0)
    module = Several(tuple(CASES[index] for index in FEW.get(name, range(len(CASES))))).eval()
    program = exported(module, *several_inputs(0.0))
    state = module.state_dict()
    torch.save(state, root / "weights.pt")
    torch.save({key: value for key, value in weights_of(program).items() if key not in state}, root / "constants.pt")
    torch.export.save(program, root / "exported.pt2")
    for folder in ("program", "home", "tmp"):
        (root / folder).mkdir()
    backend = get_backend(name.partition(" ")[0])
    _python(root, COMPILE, backend.name, str(root / "exported.pt2"), str(root / "program"), str(BATCH), str(TIME))
    return Compiled(backend, module, root)


def _python(root: Path, code: str, *arguments: str) -> str:
    environment = {**os.environ, "HOME": str(root / "home"), "TMPDIR": str(root / "tmp"), "OMP_NUM_THREADS": "1"}
    if arguments[0] == "native":  # its libraries are 15 s of a C++ compiler
        environment.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    command = [sys.executable, "-c", code, *arguments]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@torch.no_grad()
def test_equals_every_row_alone_whatever_the_padding_holds(compiled: Compiled) -> None:
    run = compiled.load()
    for garbage in GARBAGE:
        inputs = several_inputs(garbage)
        ours, theirs = (
            compiled.module.without_padding(answers, garbage)
            for answers in (run(inputs), compiled.module.alone(inputs))
        )

        assert largest_error(ours, theirs) <= 1e-5


def test_programs_hold_no_weights(compiled: Compiled) -> None:
    sizes = {file.name: file.stat().st_size for file in compiled.directory.iterdir()}

    assert sum(sizes.values()) < 700_000, sizes


@pytest.mark.few(2)
def test_further_loads_share_the_weights(compiled: Compiled) -> None:
    weights, host = compiled.weights(), compiled.backend.host()
    inputs = several_inputs(0.0)
    runs = [compiled.backend.load(compiled.directory, weights, host, 1)]
    runs[0](inputs)
    before = psutil.Process().memory_info().rss
    for _ in range(3):
        runs.append(compiled.backend.load(compiled.directory, weights, host, 1))
        runs[-1](inputs)

    assert (psutil.Process().memory_info().rss - before) / 3 < TABLE_BYTES / 2


@pytest.mark.ci
def test_another_process_answers_the_same(compiled: Compiled) -> None:
    inputs = several_inputs(0.0)
    torch.save(list(inputs), compiled.root / "inputs.pt")
    host = json.dumps(dict(compiled.backend.host()))
    imported = json.loads(
        _python(compiled.root, SERVE, compiled.backend.name, str(compiled.directory), host, *compiled.files)
    )

    for ours, theirs in zip(compiled.load()(inputs), torch.load(compiled.root / "answers.pt"), strict=True):
        assert torch.equal(ours, theirs)
    if compiled.backend.name == "inductor":
        assert [name for name in imported if name.startswith("torch._inductor")] == []
    assert "onnxscript" not in imported


def test_nothing_is_left_behind(compiled: Compiled) -> None:
    files = [path for folder in ("home", "tmp") for path in (compiled.root / folder).rglob("*") if path.is_file()]

    assert [path for path in files if path.parent.name != "torchserve-neuron-lstm"] == []


def test_other_inputs_are_refused_by_name(compiled: Compiled) -> None:
    run = compiled.load()
    x, ids, keep, unread, lengths = several_inputs(0.0)
    rest = (keep, unread, lengths)

    with pytest.raises(ValueError, match=r"'x' is float64 \[4, 9, 5\], but .* float32"):
        run([x.double(), ids, *rest])
    with pytest.raises(ValueError, match=r"'ids' is int32 \[3\], but .* \[4\]"):
        run([x, ids[:3], *rest])
    with pytest.raises(ValueError, match="4 inputs, but the program takes 5"):
        run([x, ids, keep, unread])


@torch.no_grad()
def test_inputs_may_be_views(compiled: Compiled) -> None:
    x, *rest = several_inputs(0.0)
    view = x.transpose(0, 1).contiguous().transpose(0, 1)
    run = compiled.load()

    assert not view.is_contiguous()
    for ours, theirs in zip(run([view, *rest]), run([x, *rest]), strict=True):
        assert torch.equal(ours, theirs)


def test_other_weights_are_refused_by_name(compiled: Compiled) -> None:
    weights = compiled.weights()
    name = "layers.0.core.weight_hh_l0"
    for other, says in (
        ({key: value for key, value in weights.items() if key != name}, "missing"),
        ({**weights, name: weights[name][:-1]}, r"\[23, 6\]"),
        ({**weights, name: weights[name].half()}, "float16"),
    ):
        with pytest.raises(LoadError, match=f"{name}: .*{says}"):
            compiled.backend.load(compiled.directory, other, compiled.backend.host(), 1)


def test_damaged_programs_are_refused(compiled: Compiled, tmp_path: Path) -> None:
    of_others = {one.library for one in instruction_sets()} - {fastest_library(compiled.directory)}
    for victim in (file for file in compiled.directory.iterdir() if file.name not in of_others):
        for content in (None, b"torn"):
            copy = tmp_path / f"{victim.name}-{content is None}"
            copy.mkdir()
            for file in compiled.directory.iterdir():
                (copy / file.name).write_bytes(file.read_bytes())
            if content is None:
                (copy / victim.name).unlink()
            else:
                (copy / victim.name).write_bytes(content)

            with pytest.raises(LoadError):
                compiled.backend.load(copy, compiled.weights(), compiled.backend.host(), 1)


@pytest.mark.parametrize("name", ["eager", "native", "onnxruntime"])
@torch.no_grad()
def test_polymorphic_programs_take_every_shape(name: str, tmp_path: Path) -> None:
    class Sums(torch.nn.Module):
        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x.cumsum(1), lengths * 2

    backend = get_backend(name)
    module = Sums()
    backend.compile(exported(module, torch.zeros(3, 7, 2), torch.tensor([7, 5, 3])), None, tmp_path)
    run = backend.load(tmp_path, {}, backend.host(), 1)
    for batch, time in ((1, 1), (1, 16), (8, 3)):
        inputs = (torch.randn(batch, time, 2), torch.full((batch,), time))
        assert largest_error(run(inputs), list(module(*inputs))) <= 1e-5


def test_buckets_are_told_apart_by_name_not_by_place() -> None:
    class TimeMajor(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Several(CASES[:1], rows=7)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            answer: torch.Tensor = self.inner.layers[0](x.transpose(0, 1), lengths)[0]
            return answer

    batch, time = torch.export.Dim("batch", min=1), torch.export.Dim("time", min=1)
    program = torch.export.export(
        TimeMajor().eval(),
        (torch.zeros(7, 3, 5), torch.tensor([7, 5, 3])),
        dynamic_shapes=({0: time, 1: batch}, {0: batch}),
        strict=False,
    )
    inputs = signature_of(program, Bucket(4, 9)).inputs

    assert [kind.shape for kind in inputs.values()] == [(9, 4, 5), (4,)]
