from importlib import metadata
from pathlib import Path

from torchserve_neuron_lstm.archiver_ext.own_model.imports import imported_modules, imports_late, required_distributions


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder / "model.py"


def test_imports_are_followed_through_the_users_files(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        model="import os, torch\nfrom parts import f\nfrom package.layers import Layer\n",
        parts="def f():\n    import numpy.linalg\n",
        package__layers="from . import inner\nfrom .deeper import x\nimport yaml\n",
        package__inner="import absent_package\n",
        package__deeper="import parts, rich.console\nx = 1\n",
        unused="import redis\n",
    )

    assert imported_modules(file) == {"torch", "numpy", "yaml", "absent_package", "rich"}
    needs = {need.distribution: need for need in required_distributions(file)}
    assert needs["PyYAML"].module == "yaml"
    assert needs["numpy"].version == metadata.version("numpy")
    assert "absent_package" not in needs


def test_an_import_of_the_users_file_within_a_function_is_late(tmp_path: Path) -> None:
    file = written(tmp_path, model="from parts import f\n", parts="def f():\n    import numpy\n")
    assert not imports_late(file)

    file = written(
        tmp_path, model="from parts import f\n", parts="def f():\n    from other import g\n", other="g = 1\n"
    )
    assert imports_late(file)
