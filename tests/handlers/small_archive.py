"""An archive that starts in 0.1 s without torch, and a worker that loads it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from torchserve_neuron_lstm.archiver_ext.archive.carried_files import carried_files
from torchserve_neuron_lstm.archiver_ext.archive.file_list import write_list
from torchserve_neuron_lstm.handlers.neuron_lstm import check_folder

PACKAGE = "torchserve_neuron_lstm"
ENTRY_FILE = "neuron_lstm.py"
MARKER = "import os\nopen(os.environ['MARKER'], 'a').write(__name__)\n"
START = """
import builtins, importlib, json, os, sys, traceback
import dataclasses, hashlib, logging, pathlib, typing  # as TorchServe does before any handler
folder = sys.argv[1]
os.chdir(folder)
sys.path.insert(0, folder)
class Context:
    system_properties = {"model_dir": folder}
try:
    importlib.import_module("neuron_lstm").NeuronLstm().initialize(Context())
except Exception as error:
    sys.exit("".join(traceback.format_exception(error)) + f"\\nREFUSED {error}")
"""
"""A worker without torch, for an archive whose `torchserve.py` only marks that it ran."""


def write_small(folder: Path) -> Path:
    """An archive with all kinds of files, of which the entry point writes the marker; it starts in 0.1 s."""
    for file in [*carried_files("eager"), Path("user.py")]:
        path = folder / PACKAGE / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('"""A module."""\n')
    (folder / PACKAGE / "handlers" / "torchserve.py").write_text(
        f"import helper, package.inner, folder_only.module\n{MARKER}\n"
        "load = lambda context: None\nassert helper.__file__ and helper.WORD == 'listed'\n"
    )
    source = Path(check_folder.__code__.co_filename).parent
    shutil.copy(source / "runtime" / "checked_modules.py", folder / PACKAGE / "handlers" / "runtime")
    shutil.copy(source / ENTRY_FILE, folder)
    texts = {
        "helper.py": "WORD = 'listed'\n",
        "package/__init__.py": "",
        "package/inner.py": "from . import other\n",
        "package/other.py": "",
        "folder_only/module.py": "",
        "index_to_name.json": '{"0": "no"}',
        "model-config.yaml": "batchSize: 8\n",
        "variants.json": "{}\n",
        "MAR-INF/MANIFEST.json": '{"model": {"modelName": "small"}}',
        "weights.pt": "0123456789" * 50,
        "programs/eager/any/program.pt2": "PK",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    write_list(folder)
    return folder


class Started:
    """The end of a worker: `ran` is what the marker says, `refusal` the message, if there is one."""

    def __init__(self, folder: Path, **environment: str) -> None:
        marker = folder.parent / "marker"
        marker.unlink(missing_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run(
            [sys.executable, "-c", START, str(folder)],
            env={**kept, "MARKER": str(marker), **environment},
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        self.ready = done.returncode == 0
        self.told = done.stderr
        self.refusal = done.stderr.rpartition("REFUSED ")[2].strip()
        self.ran = marker.read_text() if marker.exists() else ""

    def assert_refused(self, name: str = "", ran: str = "") -> None:
        """Check that the worker has refused, with this name in its message, and what ran before."""
        assert not self.ready
        assert name in self.refusal
        assert self.ran == ran


def files_of(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
