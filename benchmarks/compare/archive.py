"""The same archive twice, each packaged by its own commit."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from torchserve_neuron_lstm.archiver_ext.archive.file_list import write_list

from ..packaging import CannotArchive, run_archiver
from ..rest.model import TokenClassifier
from .child import LONGEST, TOKENS
from .process import environment
from .sides import Side

NAME = "classifier"
_PACKAGE = "torchserve_neuron_lstm"
_FEATURES, _HIDDEN = 64, 128
_CONFIG = f"""\
minWorkers: 1
maxWorkers: 1
batchSize: 32
maxBatchDelay: 2
neuron_lstm:
  model: {{args: {{tokens: {TOKENS}, features: {_FEATURES}, hidden: {_HIDDEN}}}}}
  inputs:
    ids: {{dtype: int64, shape: [batch, time]}}
  lengths: lengths
  outputs: [scores]
  buckets: {{batch: [1, 8, 32], length: [16, 64, {LONGEST}]}}
  backend: native
"""
_COSTS = ("costs", "padding_costs")
"""The keys of variants.json by which batches are planned."""


def packaged(side: Side, folder: Path) -> Path:
    """Run `neuron-lstm archive` of the side's commit in a new folder.

    Returns the folder of the archive's files.

    Raises:
        CannotArchive: the command failed, or the archive does not hold the commit's code.
    """
    folder.mkdir()
    torch.manual_seed(0)
    torch.save(TokenClassifier(TOKENS, _FEATURES, _HIDDEN).state_dict(), folder / "weights.pt")
    shutil.copy(Path(__file__).parents[1] / "rest" / "model.py", folder)
    (folder / "model-config.yaml").write_text(_CONFIG)
    archive = run_archiver(folder, NAME, f"at {side.commit}", environment(side.root, os.environ))
    refuse_other_code(archive, side)
    return archive


def refuse_other_code(archive: Path, side: Side) -> None:
    """Refuse an archive whose files of the package are not those of the side's checkout.

    Raises:
        CannotArchive: names the first file that differs.
    """
    package, checkout = archive / _PACKAGE, side.root / "src" / _PACKAGE
    own = [file.relative_to(package) for file in sorted(package.rglob("*.py"))]
    known = [file for file in own if (checkout / file).is_file()]
    if not known:
        raise CannotArchive(f"the archive made at {side.commit} holds no file of its package")
    for file in known:
        if (package / file).read_bytes() != (checkout / file).read_bytes():
            raise CannotArchive(f"the archive made at {side.commit} does not hold that commit's {file}")


def share_costs(base: Path, head: Path) -> bool:
    """Give the head's archive the costs measured for the base's archive, so that both make the same plans.

    Returns whether that was possible.

    Packaging measures costs, and plans follow them: two archives of one commit may already plan differently.
    """
    ours, theirs = (json.loads((archive / "variants.json").read_text("utf-8")) for archive in (head, base))
    if any(_measured(ours, key) is None or _measured(ours, key) != _measured(theirs, key) for key in _COSTS):
        return False
    ours.update({key: theirs[key] for key in _COSTS})
    (head / "variants.json").write_text(json.dumps(ours, indent=2) + "\n", "utf-8")
    if (head / "SHA256SUMS").is_file():
        write_list(head)
    return True


def _measured(variants: dict[str, Any], key: str) -> list[dict[str, Any]] | None:
    """Describe the measured archive, without the figures."""
    costs = variants.get(key)
    if not isinstance(costs, list) or not all(isinstance(cost, dict) and "milliseconds" in cost for cost in costs):
        return None
    return [{name: value for name, value in cost.items() if name != "milliseconds"} for cost in costs]
