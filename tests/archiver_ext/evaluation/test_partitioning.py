import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from torchserve_neuron_lstm.config.manifest import read_manifest

from ..archived_answers import check_answers, unpacked
from ..conftest import Package, Project

HEAD = "self.head(answers)"
BESSEL = "torch.special.bessel_j0(self.head(answers))"


def configure(project: Project, backend: str, partitioner: str | None, model: str = HEAD) -> None:
    project.configure(backend=backend, batch=(2,), length=(4,))
    if partitioner is not None:
        with (project.folder / "model-config.yaml").open("a") as file:
            file.write(f"  partitioner_config: {partitioner}\n")
    code = (project.folder / "model.py").read_text()
    (project.folder / "model.py").write_text(code.replace(HEAD, model))


def segments(host: Path) -> dict[str, Sequence[tuple[str, Sequence[str]]]]:
    """The place and the operators of each segment of each divided program."""
    return {
        file.parent.relative_to(host / "programs").as_posix(): [
            (one["place"], one["operators"]) for one in json.loads(file.read_text())["segments"]
        ]
        for file in host.glob("programs/*/*/*/segments.json")
    }


@pytest.mark.ci
def test_an_operator_that_the_engine_refuses_runs_on_the_cpu(project: Project, package: Package) -> None:
    configure(project, "onnxruntime", None, BESSEL)
    code, _, error = package("--force")
    assert code == 1
    assert "no translation for the operator prims::bessel_j0" in error
    assert "partitioner_config: {}" in error
    configure(project, "onnxruntime", "{}")
    code, told, _ = package("--force")
    assert code == 0
    assert "on the CPU, not on onnxruntime: aten::special_bessel_j0\n" in told
    host = unpacked(project.folder / "tiny.mar", project.folder / "host")
    divided = segments(host)
    assert set(divided) == {"onnxruntime/chunk/b2_t4", "onnxruntime/head/b2_t1"}
    assert {place for place, _ in divided["onnxruntime/head/b2_t1"]} == {"device"}
    on_cpu = [operators for place, operators in divided["onnxruntime/chunk/b2_t4"] if place == "cpu"]
    assert on_cpu == [["aten::special_bessel_j0"]]
    assert not list((host / "programs").rglob("*.pt")), "weights belong to the user's own file alone"
    manifest = read_manifest(host)
    assert manifest.backend == "onnxruntime"
    assert manifest.shapes == "grid"
    check_answers(project, host, (3, 1, 4))


@pytest.mark.ci
def test_an_engine_that_takes_the_whole_model_is_packaged_as_ever(project: Project, package: Package) -> None:
    configure(project, "onnxruntime", "{}")
    assert package("--force")[0] == 0
    host = unpacked(project.folder / "tiny.mar", project.folder / "host")
    assert not segments(host)
    assert read_manifest(host).shapes == "any"
    check_answers(project, host, (3, 1, 4))


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ('{ops_to_partition: ["aten::lstm"], max_subgraph_count: 1}', "max_subgraph_count: the program has 3"),
        ('{ops_to_partition: ["aten::lstm"], min_subgraph_size: 2}', "min_subgraph_size: "),
        ("{min_subgraph_size: 100}", "min_subgraph_size: 1 of 1 segments"),
        ("{trace_kwargs: {compiler_args: -O1}}", "trace_kwargs.compiler_args: eager does not support this option"),
    ],
)
def test_limits_that_are_not_kept_are_refused_by_their_path(
    options: str, text: str, project: Project, package: Package
) -> None:
    configure(project, "eager", options)
    code, _, error = package("--force")
    assert code == 1
    assert f"error: neuron_lstm.partitioner_config.{text}" in error
    assert "compile 1/" not in error
