"""Write the weights of an archive, and the constants found by lowering, as one .safetensors file.

    python export_weights.py tagger.mar weights.safetensors

Only Python can read the files of torch.save; a page of C++ can read .safetensors.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from safetensors.torch import save_file

from torchserve_neuron_lstm.backends.weights import read_weights
from torchserve_neuron_lstm.config.manifest import read_manifest
from torchserve_neuron_lstm.inference.reader import ArchiveReader


def export_weights(archive: Path, target: Path) -> None:
    """Write every tensor that a program of the archive may be given at load."""
    with ArchiveReader(archive).checked() as folder:
        manifest = read_manifest(folder)
        files = [folder / file for file in (manifest.weights, manifest.constants) if file is not None]
        tensors = {name: tensor for file in files for name, tensor in read_weights(file).items()}
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, target)  # save_file refuses shared memory


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Write the weights of an archive as one .safetensors file.")
    parser.add_argument("archive", type=Path)
    parser.add_argument("target", type=Path)
    given = parser.parse_args()
    export_weights(given.archive, given.target)


if __name__ == "__main__":
    main()
