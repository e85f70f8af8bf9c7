"""Write one self-contained .onnx file from an archive of backend onnxruntime or openvino.

The file holds the graph with its weights.

python export_onnx.py tagger.mar tagger.onnx
python export_onnx.py tagger.mar tagger-chunk.onnx --part chunk
"""

from __future__ import annotations

import argparse
from pathlib import Path

import onnx
import torch

from torchserve_neuron_lstm.backends.weights import read_weights
from torchserve_neuron_lstm.config.manifest import Manifest, read_manifest
from torchserve_neuron_lstm.inference.reader import ArchiveReader


def export_onnx(archive: Path, target: Path, part: str | None = None) -> None:
    """Write the program of a part; None: of the model's only part.

    Raises:
        SystemExit: the archive's engine has no ONNX graph, or `part` is missing and there are several parts.
    """
    with ArchiveReader(archive).checked() as folder:
        manifest = read_manifest(folder)
        model = onnx.load(folder / _program_of(manifest, part), load_external_data=False)
        files = [folder / file for file in (manifest.weights, manifest.constants) if file is not None]
        _fill_in(model, {name: tensor for file in files for name, tensor in read_weights(file).items()})
        onnx.save(model, target)


def _program_of(manifest: Manifest, part: str | None) -> Path:
    programs = {variant.part: Path(variant.directory) / "program.onnx" for variant in manifest.variants}
    if manifest.backend not in ("onnxruntime", "openvino"):
        raise SystemExit(f"the archive was packaged with backend {manifest.backend}, which has no ONNX graph")
    if part is None and len(programs) > 1:
        raise SystemExit(f"the model runs in parts: choose one with --part ({', '.join(programs)})")
    chosen = part or next(iter(programs))
    if chosen not in programs:
        raise SystemExit(f"the archive has no part {chosen}, but {', '.join(programs)}")
    return programs[chosen]


def _fill_in(model: onnx.ModelProto, weights: dict[str, torch.Tensor]) -> None:
    """Insert the weights that the graph has only by name: as external initializers, or as inputs."""
    graph = model.graph
    external = [one for one in graph.initializer if one.data_location == onnx.TensorProto.EXTERNAL]
    inputs = [one for one in graph.input if one.name in weights]
    for absent, among in ((external, graph.initializer), (inputs, graph.input)):
        for one in absent:
            among.remove(one)
            graph.initializer.append(onnx.numpy_helper.from_array(weights[one.name].detach().numpy(), one.name))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Write one self-contained .onnx from an archive.")
    parser.add_argument("archive", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--part", help="the program of a model that runs in chunks of time: start, chunk or head")
    given = parser.parse_args()
    export_onnx(given.archive, given.target, given.part)


if __name__ == "__main__":
    main()
