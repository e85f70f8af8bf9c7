"""The distributions that a model's files import."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from ...config.manifest import RequiredPackage
from ...config.own_model import OwnModel
from ..archive.carried_files import reachable


def imported_by(tree: Path, model: OwnModel | None) -> tuple[RequiredPackage, ...]:
    """Return what the files of a model in the archive's tree need beside torch."""
    if model is None or model.module is None:
        return ()
    own = ("torch", __name__.partition(".")[0])
    return tuple(need for need in required_distributions(tree / model.file) if need.module not in own)


def required_distributions(file: Path) -> tuple[RequiredPackage, ...]:
    """Return what a Python file and the files beside it that it imports need, in the versions that are installed here.

    The standard library is left out, and so are modules that are not installed: they may be optional.
    """
    modules = sorted(imported_modules(file))
    providers = metadata.packages_distributions()
    return tuple(
        RequiredPackage(distribution, module, metadata.version(distribution))
        for module in modules
        for distribution in providers.get(module, [])[:1]
    )


def imported_modules(file: Path) -> set[str]:
    """Return the names at the top of all imports, within functions too, that are not the user's own files."""
    folder = file.parent
    names = {name for path in reached_files(file) for name in _names_in(path)}
    tops = {name.partition(".")[0] for name in names} - {""} - sys.stdlib_module_names
    return {top for top in tops if not (folder / f"{top}.py").is_file() and not (folder / top).is_dir()}


def imports_late(file: Path) -> bool:
    """Whether a file, or one that it imports, imports another file of the user within a function."""
    return any(
        any(_own_files(file.parent, name))
        for path in reached_files(file)
        for function in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for name in _names_in(path, function)
    )


def reached_files(file: Path) -> set[Path]:
    """Return the user's files that are imported from one, directly or not, and that one."""
    return reachable([file], lambda path: [own for name in _names_in(path) for own in _own_files(file.parent, name)])


def _names_in(path: Path, function: ast.AST | None = None) -> Iterator[str]:
    """Yield the names that a file, or one function of it, imports; those of relative imports as paths after a dot."""
    for node in ast.walk(function or ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            base = path.parents[node.level - 1]
            names = [node.module] if node.module else [alias.name for alias in node.names]
            yield from (f".{base / name.replace('.', '/')}" for name in names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _own_files(folder: Path, name: str) -> Iterator[Path]:
    base = Path(name[1:]) if name.startswith(".") else folder.joinpath(*name.split("."))
    yield from (path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file())
