import sys
from importlib.util import find_spec
from pathlib import Path

from torchserve_neuron_lstm.inference.isolated_modules import IsolatedModules


def test_modules_of_one_name_in_two_folders_do_not_meet(tmp_path: Path) -> None:
    mine = type(sys)("shared_name")
    sys.modules["shared_name"] = mine
    found, folders = [], []
    for number in (1, 2):
        place = tmp_path / str(number)
        place.mkdir()
        code = (
            f"import shared_helper\nVALUE = shared_helper.VALUE + {number}\ndef late():\n    import shared_name as m\n"
        )
        (place / "shared_name.py").write_text(f"{code}    m.VALUE += 100\n    return m.VALUE\n", "utf-8")
        (place / "shared_helper.py").write_text(f"VALUE = {10 * number}\n", "utf-8")
        modules = IsolatedModules(place)
        with modules.imported():
            import shared_name  # type: ignore[import-not-found]  # the user's file

            found.append(shared_name.VALUE)
        folders.append((modules, shared_name.late))
    for modules, call in folders:
        with modules.imported():
            found.append(call())

    assert found == [11, 22, 111, 122]
    assert sys.modules.pop("shared_name") is mine
    assert "shared_helper" not in sys.modules
    assert not list(tmp_path.rglob("__pycache__"))


def test_a_folder_of_data_hides_no_module_of_the_host(tmp_path: Path) -> None:
    names = ("host/shared_name/__init__.py", "archive/own_name/module.py", "archive/shared_name/data.txt")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    with IsolatedModules(tmp_path / "archive").imported():
        sys.path.append(str(tmp_path / "host"))
        found = [find_spec("shared_name"), find_spec("own_name.module")]

    assert [spec and spec.origin for spec in found] == [str(tmp_path / name) for name in names[:2]]
