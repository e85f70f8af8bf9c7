"""Import rules of the package: those of ARCHITECTURE.md, read off the source without running it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

PACKAGE = "torchserve_neuron_lstm"

FOLDERS = (
    *("archiver_ext", "backends", "bucketing", "config", "handlers"),
    *("hosts", "inference", "lowering", "sessions", "tracing", "training"),
)

ALLOWED_PACKAGES = {
    "bucketing": (),
    "sessions": (),
    "training": (),
    "config": ("bucketing", "sessions.settings"),
    "backends": ("bucketing", "config.json_codec", "config.file_errors", "config.partitioner"),
    "lowering": ("bucketing", "config", "backends"),
    "handlers": ("bucketing", "sessions", "backends", "config.manifest", "config.own_model", "config.json_codec"),
    "inference": ("bucketing", "config.manifest", "handlers", "sessions.session"),
    "hosts": ("bucketing", "config.manifest", "handlers", "inference"),
    "tracing": ("bucketing", "backends", "lowering", "config.json_codec", "config.partitioner"),
    "archiver_ext": (
        *("bucketing", "sessions", "config", "backends", "lowering", "inference"),
        *("handlers.neuron_lstm", "handlers.runtime", "handlers.streaming.open_sessions", "handlers.formats.request"),
        *("hosts.builtin.command", "hosts.builtin.worker_processes", "hosts.ray_serve.command"),
        *("hosts.torchserve.command", "hosts.torchserve.properties"),
    ),
}
FORBIDDEN = {"archiver_ext": ("handlers.torchserve",), "inference": ("handlers.torchserve",)}

ONE_PLACE = {"yaml": "config/yaml_text.py", "ts": "handlers/torchserve.py", "model_archiver": "archiver_ext/"}
"""Distributions that are imported in one place only: a file or a folder."""

ONE_FILE = ("model_archiver",)
"""Those of them that only one file of their folder imports."""

HOST_PACKAGES = (
    *("fastapi", "google", "grpc", "grpc_health", "kserve", "prometheus_client", "ray", "starlette"),
    *("opentelemetry", "uvicorn", "uvloop", "websockets"),
)
"""Packages of servers, for files of `hosts/` only."""

READS_MANIFEST = ("config/manifest.py", "config/own_model.py", "config/json_codec.py", "config/manifest_values.py")

SERVING = ("handlers/", "bucketing/", "backends/", "sessions/", *READS_MANIFEST, "config/__init__.py")
"""The files that are copied into an archive; they may use the standard library, torch and one engine."""

WITHOUT_TORCH = ("bucketing/", "sessions/", *READS_MANIFEST)
WITH_TORCH = ("bucketing/padding.py", "bucketing/execute.py", "bucketing/execute_chunks.py")


ENGINE_FILES = (
    ("backends/inductor.py", ("torch._inductor",)),
    ("backends/onnxruntime.py", ("onnxruntime",)),
    ("backends/openvino.py", ("onnx", "openvino")),
    ("backends/cuda/", ("cuda",)),
    ("backends/vollo/", ("vollo_compiler", "vollo_rt", "vollo_torch")),
    ("backends/aws_neuron/", ("torch_neuron", "torch_neuronx")),
    ("backends/inductor_compiler.py", ("torch._inductor",)),
    ("backends/onnx_export.py", ("onnx", "onnxscript")),
    ("backends/onnx_recurrences.py", ("onnxscript",)),
    ("sessions/redis/connections.py", ("redis",)),
    ("sessions/redis/node.py", ("redis",)),
    *((file, ("cryptography",)) for file in ("handlers/neuron_lstm.py", "archiver_ext/commands/sign.py")),
    ("archiver_ext/commands/tuning/picture.py", ("matplotlib",)),
)
"""Third-party packages of one backend or store, for its functions only; a folder ends in a slash."""

ENGINES = tuple(sorted({name for _, names in ENGINE_FILES for name in names} - {"numpy"} | {"torch._dynamo"}))
"""Heavy or optional packages: imported inside functions, in every sub-package."""

OPTIONAL = ("orjson",)
"""Packages that serving code may use if installed: inside `try`, with handling of ImportError."""


@dataclass(frozen=True)
class Import:
    """One import: of a file of this package as `bucketing.shapes`, of anything else by its full name."""

    file: str
    line: int
    module: str
    ours: bool
    in_function: bool = False
    guarded: bool = False
    typing_only: bool = False

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]

    def inside(self, *modules: str) -> bool:
        """Whether it is one of `modules`, or below one."""
        return any(self.module == module or self.module.startswith(f"{module}.") for module in modules)

    def within(self, *places: str) -> bool:
        """Whether its file is one of `places`; a place that ends in a slash is a folder."""
        return any(self.file == place or (place.endswith("/") and self.file.startswith(place)) for place in places)


def violations(root: Path) -> list[str]:
    """Every broken rule below `root`, which holds the source folders, as "file:line: message"."""
    imports = [found for path in source_files(root) for found in imports_of(path, root)]
    broken = [f"{found.file}:{found.line}: {wrong}" for found in imports for wrong in _broken_rules(found)]
    return sorted(broken) + _second_places(imports)


def source_files(root: Path) -> list[Path]:
    """The Python files of the existing source folders."""
    return sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))


def imports_of(path: Path, root: Path) -> list[Import]:
    """All imports of one file, those inside functions included."""
    file = path.relative_to(root).as_posix()
    return list(_walk(ast.parse(path.read_text("utf-8")), Import(file, 0, "", ours=False)))


def _walk(node: ast.AST, here: Import) -> Iterator[Import]:
    """The imports below `node`; `here` has the surrounding statements."""
    if isinstance(node, ast.Call) and (name := _imported_by_call(node)):
        yield _named(name, replace(here, line=node.lineno))
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        for name in _imported(node, here.file):
            yield _named(name, replace(here, line=node.lineno))
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        yield from _walk_all(ast.iter_child_nodes(node), replace(here, in_function=True))
    elif isinstance(node, ast.Try):
        caught = [ast.unparse(handler.type) for handler in node.handlers if handler.type]
        answered = any("ImportError" in one or "ModuleNotFoundError" in one for one in caught)
        yield from _walk_all(node.body, replace(here, guarded=here.guarded or answered))
        yield from _walk_all([*node.handlers, *node.orelse, *node.finalbody], here)
    elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        yield from _walk_all(node.body, replace(here, typing_only=True))
        yield from _walk_all(node.orelse, here)
    else:
        yield from _walk_all(ast.iter_child_nodes(node), here)


def _walk_all(nodes: Iterator[ast.AST] | list[ast.stmt] | list[ast.AST], here: Import) -> Iterator[Import]:
    for node in nodes:
        yield from _walk(node, here)


def _imported(node: ast.Import | ast.ImportFrom, file: str) -> list[str]:
    """Full names; `from x import y` may mean the module x.y, so both parts are kept."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        folders = [PACKAGE, *Path(file).parts[:-1]]
        base = ".".join([*folders[: len(folders) - node.level + 1], *([base] if base else [])])
    return [f"{base}.{alias.name}" for alias in node.names]


def _imported_by_call(node: ast.Call) -> str | None:
    """The name in `importlib.import_module("name")`, if it is a literal."""
    called = ast.unparse(node.func).rpartition(".")[2]
    if called in ("import_module", "__import__") and node.args and isinstance(node.args[0], ast.Constant):
        return str(node.args[0].value)
    return None


def _named(name: str, here: Import) -> Import:
    ours = name == PACKAGE or name.startswith(f"{PACKAGE}.")
    return replace(here, module=name.removeprefix(PACKAGE).removeprefix(".") if ours else name, ours=ours)


def _broken_rules(found: Import) -> Iterator[str]:
    yield from _broken_package_rules(found) if found.ours else _broken_third_party(found)


def _broken_package_rules(found: Import) -> Iterator[str]:
    own = found.file.partition("/")[0]
    if found.top == own or found.top not in FOLDERS:
        return
    if not found.inside(*ALLOWED_PACKAGES[own]) or found.inside(*FORBIDDEN.get(own, ())):
        allowed = ", ".join(ALLOWED_PACKAGES[own]) or "no other package"
        but = "".join(f", not {name}" for name in FORBIDDEN.get(own, ()))
        yield f"{own} must not import {found.module}: it may import {allowed}{but}"


def _broken_third_party(found: Import) -> Iterator[str]:
    if found.top in ONE_PLACE and not found.within(ONE_PLACE[found.top]):
        yield f"{found.top} may be imported in {ONE_PLACE[found.top]} only"
    elif found.top in HOST_PACKAGES and not found.within("hosts/"):
        yield f"{found.top} is for hosts/ only"
    elif found.typing_only or found.top in sys.stdlib_module_names or found.top == "__future__":
        return
    elif found.inside(*ENGINES) and not found.in_function:
        yield f"{found.module} is an engine: import it inside a function"
    elif found.top == "torch" and found.within(*WITHOUT_TORCH) and not found.within(*WITH_TORCH):
        yield "the standard library only, here: torch is for padding and execution"
    elif found.within(*SERVING) and not _may_be_carried(found):
        yield f"{found.top} cannot be carried in an archive: it has the standard library, torch and one engine"


def _may_be_carried(found: Import) -> bool:
    engine = found.in_function and any(found.within(place) and found.top in names for place, names in ENGINE_FILES)
    optional = found.guarded and found.top in OPTIONAL and not found.within(*WITHOUT_TORCH)
    return found.top in ("torch", *ONE_PLACE) or engine or optional


def _second_places(imports: list[Import]) -> list[str]:
    """A distribution that is imported in two files of a folder, although one is allowed."""
    places = {top: sorted({found.file for found in imports if not found.ours and found.top == top}) for top in ONE_FILE}
    return [f"{file}: {top} is already imported in {files[0]}" for top, files in places.items() for file in files[1:]]
