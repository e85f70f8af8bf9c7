"""The lock has one version and the digests of every package that the set-up installs, but of torch."""

import re
from importlib import metadata
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCK = (ROOT / "requirements.lock").read_text("utf-8")
PROJECT = "torchserve-neuron-lstm"
EXTRAS = ("", "dev", "onnxruntime", "openvino", "otel", "picture", "redis", "serve", "server", "sign")
"""Those that the set-up installs."""
ENTRIES = re.split(r"\n(?=\S)", LOCK.strip())
"""A pinned requirement, and a line for each digest."""


def pinned(entry: str) -> Requirement:
    return Requirement(entry.partition("\\\n")[0])


def test_every_package_has_one_version_and_its_digests() -> None:
    """`pip install --require-hashes` installs nothing else."""
    for entry in ENTRIES:
        assert re.fullmatch(r"==[^,]+", str(pinned(entry).specifier)), entry
        assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", entry)) == entry.count("--hash") > 0, entry


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_the_lock_has_what_the_project_requires_in_a_version_that_fits(python: str) -> None:
    """A new requirement in pyproject.toml needs `make lock`."""
    environment = {name: str(value) for name, value in default_environment().items()}
    environment |= {"python_version": python, "python_full_version": f"{python}.9"}

    def applies(requirement: Requirement) -> bool:
        marker = requirement.marker
        return marker is None or any(marker.evaluate({**environment, "extra": extra}) for extra in EXTRAS)

    lock = [requirement for requirement in map(pinned, ENTRIES) if applies(requirement)]
    versions = {canonicalize_name(one.name): next(iter(one.specifier)).version for one in lock}
    assert len(versions) == len(lock), "a package has two versions"
    for requirement in filter(applies, map(Requirement, metadata.requires(PROJECT) or ())):
        if requirement.name not in ("torch", PROJECT):
            assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), requirement


def test_torch_and_packages_of_accelerators_are_not_in_the_lock() -> None:
    """The builds of torch differ by package index, and one needs gigabytes of CUDA."""
    names = {pinned(entry).name for entry in ENTRIES}
    assert not {name for name in names if name in ("torch", "triton") or name.startswith(("nvidia", "cuda"))}
