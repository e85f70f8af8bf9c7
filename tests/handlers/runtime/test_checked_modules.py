from pathlib import Path

from torchserve_neuron_lstm.archiver_ext.archive.file_list import write_list

from ..small_archive import PACKAGE, Started


def test_a_change_after_the_check_does_not_reach_what_is_imported_later(small_archive: Path) -> None:
    """Modules are compiled from the bytes that were checked, and bytecode is not read."""
    entry = small_archive / PACKAGE / "handlers" / "torchserve.py"
    entry.write_text(
        "import pathlib, sys\n"
        f"folder = pathlib.Path({str(small_archive)!r})\n"
        "(folder / 'helper.py').write_text('WORD = 1')\n"
        "(folder / 'package' / 'late.py').write_text('WORD = 1')\n"
        "(folder / 'fresh.py').write_text('WORD = 1')\n"
        "import helper\n"
        "assert helper.WORD == 'listed'\n"
        "for name in ('package.late', 'fresh', 'torchserve_neuron_lstm.fresh'):\n"
        "    try:\n"
        "        __import__(name)\n"
        "    except ModuleNotFoundError:\n"
        "        continue\n"
        "    raise RuntimeError(name)\n"
        "load = lambda context: None\n"
    )
    write_list(small_archive)
    started = Started(small_archive)

    assert started.ready, started.told


def test_modules_show_their_file_and_source(small_archive: Path) -> None:
    """Tracebacks, `inspect` and packages of the user's work as with files."""
    (small_archive / PACKAGE / "handlers" / "torchserve.py").write_text(
        "import inspect, package.inner, folder_only.module, helper\n"
        "assert inspect.getsource(helper) == \"WORD = 'listed'\\n\"\n"
        f"assert helper.__file__ == {str(small_archive / 'helper.py')!r}\n"
        f"assert list(package.__path__) == [{str(small_archive / 'package')!r}]\n"
        "assert package.inner.other.__name__ == 'package.other'\n"
        "load = lambda context: None\n"
    )
    write_list(small_archive)
    started = Started(small_archive)

    assert started.ready, started.told
