"""The corners of the matrix: environments that package, and hosts that serve."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Packager:
    """An environment with this package, in which the core of the tests runs and the test models are packaged."""

    python: str
    torch: str
    lowest: bool = False
    """Whether every other dependency has the lowest version that pyproject.toml allows."""
    archives: bool = False
    """Whether its archives are served by the hosts."""

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"package-{self.python}-{self.torch}{'-lowest' if self.lowest else ''}"

    @property
    def requirements(self) -> tuple[str, ...]:
        """Packages to install, beside this one."""
        return (f"torch=={self.torch}",)


@dataclass(frozen=True)
class Host:
    """An environment without this package, in which archives are served by TorchServe's loader."""

    python: str
    torch: str
    numpy: str | None
    """Release of numpy; None: not installed."""
    onnxruntime: str | None
    """Release of ONNX Runtime, which needs numpy; None: not installed."""

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"host-{self.python}-{self.torch}-numpy-{self.numpy or 'none'}"

    @property
    def requirements(self) -> tuple[str, ...]:
        """Packages to install."""
        optional = {"numpy": self.numpy, "onnxruntime": self.onnxruntime}
        pinned = (f"{name}=={version}" for name, version in optional.items() if version is not None)
        return (f"torch=={self.torch}", "torchserve==0.12.0", "pyyaml", *pinned)

    @property
    def backends(self) -> tuple[str, ...]:
        """The engines whose archives it can serve."""
        return ("native", "eager", *(("onnxruntime",) if self.onnxruntime else ()))


PACKAGERS = (
    Packager("3.11", "2.13.0", archives=True),
    Packager("3.13", "2.15.0", archives=True),
    Packager("3.10", "2.11.0"),
    Packager("3.10", "2.11.0", lowest=True),
    Packager("3.14", "2.15.0"),
)

HOSTS = (
    Host("3.9", "2.1.2", "1.26.4", "1.19.2"),
    Host("3.9", "2.4.1", "1.26.4", "1.19.2"),
    Host("3.9", "2.4.1", None, None),
    Host("3.11", "2.13.0", "2.4.6", "1.31.1"),
    Host("3.13", "2.15.0", "2.4.6", "1.31.1"),
)
