import os
from pathlib import Path

import pytest

from torchserve_neuron_lstm.backends.cores import available_cores


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


def groups(folder: Path, membership: str, files: dict[str, str]) -> tuple[Path, Path]:
    for name, text in files.items():
        (folder / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "fs" / name).write_text(text)
    (folder / "membership").write_text(membership)
    return folder / "fs", folder / "membership"


@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "1600000 100000\n"}, 8),
        ("0::/\n", {"cpu.max": "nonsense"}, 8),
        ("0::/\n", {"cpu.max": "100000 0\n"}, 8),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "max 100000\n"}, 3),
        ("0::/of/the/host\n", {"cpu.max": "400000 100000\n"}, 4),
        ("4:cpu,cpuacct:/x\n", {"cpu/x/cpu.cfs_quota_us": "300000\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, 3),
        ("4:cpu,cpuacct:/\n", {"cpu,cpuacct/cpu.cfs_quota_us": "50000", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, 1),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ("4:memory:/\n", {"memory/cpu.cfs_quota_us": "1\n", "memory/cpu.cfs_period_us": "1\n"}, 8),
        ("garbage\n", {}, 8),
    ],
)
def test_a_container_quota_bounds_the_cores(membership: str, files: dict[str, str], cores: int, tmp_path: Path) -> None:
    assert available_cores(*groups(tmp_path, membership, files)) == cores


def test_without_control_groups_the_affinity_counts(tmp_path: Path) -> None:
    assert available_cores(tmp_path / "none", tmp_path / "none") == 8
