"""`python -m tools.operators`: the releases of torch that have each operator, read from the releases themselves.

Every wheel of torch has the schemas of its operators. The wheels for macOS are the smallest. The table has operators
that the oldest release lacks, or has with other arguments; whatever is not in it is as old as that.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

TABLE = Path(__file__).parents[1] / "archiver_ext" / "evaluation" / "operators_since.json"
RELEASES = ("2.1.2", *(f"2.{minor}.0" for minor in range(2, 16)))
_SCHEMAS = "torchgen/packaged/ATen/native/native_functions.yaml"

Schemas = Mapping[str, list[str]]
"""Names of the arguments of each operator, e.g. {"aten.add.Tensor": ["self", "other", "alpha"]}."""


def main() -> None:
    """Download the releases, and write the table."""
    schemas = {}
    for release in RELEASES:
        print(f"reading torch {release}", flush=True)
        schemas[release] = _download(release)
    TABLE.write_text(as_text(table(schemas)), encoding="utf-8")


def as_text(content: Mapping[str, Any]) -> str:
    """Return the table as JSON, one line for each operator."""
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(since)}" for name, since in content["operators"].items())
    ends = ",\n".join(f" {json.dumps(key)}: {json.dumps(content[key])}" for key in ("oldest", "newest"))
    return f'{{\n{ends},\n "operators": {{\n{rows}\n }}\n}}\n'


def table(releases: Mapping[str, Schemas]) -> dict[str, Any]:
    """Return the table of releases in ascending order.

    For each operator it has the releases that changed it, and the arguments from then on.

    >>> table({"2.1": {"a": ["x"], "b": ["x"]}, "2.2": {"a": ["x"], "b": ["x", "y"], "c": []}})["operators"]
    {'b': {'2.1': ['x'], '2.2': ['x', 'y']}, 'c': {'2.2': []}}
    """
    oldest, *_, newest = releases
    operators: dict[str, dict[str, list[str]]] = {}
    for name in sorted(releases[newest]):
        changes: dict[str, list[str]] = {}
        for release, schemas in releases.items():
            if name not in schemas:
                changes.clear()
            elif not changes or schemas[name] != list(changes.values())[-1]:
                changes[release] = schemas[name]
        if list(changes) != [oldest]:
            operators[name] = changes
    return {"oldest": oldest, "newest": newest, "operators": operators}


def schemas_of(text: str) -> Schemas:
    """Return the operators that torch's own file of schemas declares.

    >>> schemas_of("- func: add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor")
    {'aten.add.Tensor': ['self', 'other', 'alpha']}
    """
    schemas = (torch._C.parse_schema(f"aten::{entry['func']}") for entry in yaml.safe_load(text))  # noqa: SLF001 - torch's parser
    return {
        f"aten.{schema.name.removeprefix('aten::')}.{schema.overload_name or 'default'}": [
            argument.name for argument in schema.arguments
        ]
        for schema in schemas
    }


def _download(release: str) -> Schemas:
    with tempfile.TemporaryDirectory() as folder:
        python = "3.10" if int(release.split(".")[1]) < 10 else "3.12"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        platforms = [f"--platform=macosx_{version}_arm64" for version in ("11_0", "12_0", "13_0", "14_0", "15_0")]
        subprocess.run(
            [*command, *platforms, f"--python-version={python}", "-d", folder, f"torch=={release}"], check=True
        )
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as content:
            return schemas_of(content.read(_SCHEMAS).decode("utf-8"))


if __name__ == "__main__":
    main()
