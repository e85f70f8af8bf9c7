"""The output of `neuron-lstm inspect` for an archive without programs."""

import json
import shutil
from pathlib import Path

import pytest
from fake_model import GRID
from printed import Capture, printed, refusal
from streaming_archive import streaming_manifest, write_streaming_archive

from torchserve_neuron_lstm.archiver_ext import report_parts
from torchserve_neuron_lstm.backends.partitioning.partitioned_program import SEGMENTS
from torchserve_neuron_lstm.config.manifest import FILE_NAME, AcceptedRange, CostMeasurement, MeasuredCost, Variant
from torchserve_neuron_lstm.config.manifest_writer import manifest_text
from torchserve_neuron_lstm.config.streaming import StreamingConfig

SETTINGS = StreamingConfig().settings("0" * 32)
ANY_SHAPE = {"shapes": "any", "variants": (Variant("chunk", None, "programs/fake"),)}


def test_the_command_tells_people_and_machines(tmp_path: Path, capsys: Capture) -> None:
    manifest = streaming_manifest(SETTINGS, **ANY_SHAPE)
    archive = write_streaming_archive(tmp_path / "tiny", manifest)

    shown = printed(capsys, "inspect", archive)
    assert "sessions are kept on the host's disk" in shown
    assert printed(capsys, "inspect", archive, "--json") == manifest_text(manifest)


def test_how_costs_were_measured_is_told(tmp_path: Path, capsys: Capture) -> None:
    manifest = streaming_manifest(
        None,
        kind="sequence",
        carried=(),
        shapes="any",
        variants=(Variant("sequence", None, "programs/fake"),),
        costs=tuple(MeasuredCost("sequence", bucket, 0.5) for bucket in GRID.buckets),
        padding_costs=tuple(MeasuredCost("sequence", bucket, 0.125) for bucket in GRID.buckets),
        measurement=CostMeasurement(2, 1.5),
        accepted=(AcceptedRange("ids", 1.0, 127.0),),
    )
    archive = write_streaming_archive(tmp_path / "tiny", manifest)

    shown = printed(capsys, "inspect", archive)
    assert "costs were measured with 2 threads" in shown
    assert "most calls took 50% longer than the shortest or less" in shown
    assert "costs were measured on a busy machine: run neuron-lstm calibrate" in shown
    assert "ids: int64[batch, time] from 1 to 127\n" in shown
    told = json.loads(printed(capsys, "inspect", archive, "--json"))
    assert told["measurement"] == {"threads": 2, "spread": 1.5, "device": None}


HOSTILE = "lines\nengine\tnative, signed \u202eby us\U000e0041"


def test_a_text_of_the_manifest_is_on_one_line_in_which_nothing_is_hidden(tmp_path: Path, capsys: Capture) -> None:
    """Whoever packaged the archive wrote it; somebody else decides by it."""
    manifest = streaming_manifest(None, kind_reason=HOSTILE, **ANY_SHAPE)

    shown = printed(capsys, "inspect", write_streaming_archive(tmp_path / "tiny", manifest))
    assert "lines\\nengine\\tnative, signed \\u202eby us\\U000e0041\n" in shown
    operators = report_parts.cost_lines("native", None, [HOSTILE])
    assert [*operators] == [f"operators on the CPU, not on native: {report_parts.one_line(HOSTILE)}"]


@pytest.mark.parametrize("version", [None, 99])
def test_json_for_a_terminal_has_the_manifests_values(version: int | None, tmp_path: Path, capsys: Capture) -> None:
    folder = write_streaming_archive(tmp_path / "tiny", streaming_manifest(None, kind_reason=HOSTILE, **ANY_SHAPE))
    written = json.loads((folder / FILE_NAME).read_text()) | ({} if version is None else {"format": version})
    (folder / FILE_NAME).write_bytes(json.dumps(written, ensure_ascii=False, indent=1).replace("\n", "\r\n").encode())

    shown = printed(capsys, "inspect", folder, "--json")
    assert shown.replace("\n", "").isprintable()
    assert json.loads(shown) == written


def unpack(archive: Path, folder: Path) -> Path:
    shutil.unpack_archive(archive, folder, "zip")
    return folder


@pytest.mark.ci
@pytest.mark.parametrize("packed", [True, False])
def test_operators_on_the_cpu_are_read_from_the_programs(
    packed: bool, divided_archive: Path, tmp_path: Path, capsys: Capture
) -> None:
    archive = divided_archive if packed else unpack(divided_archive, tmp_path)

    assert "operators on the CPU, not on onnxruntime: aten::linear\n" in printed(capsys, "inspect", archive)
    assert json.loads(printed(capsys, "inspect", archive, "--json"))["on_cpu"] == ["aten::linear"]


def test_the_file_of_segments_is_the_one_that_is_written() -> None:
    """The command names it again, so that it need not load torch."""
    assert report_parts._SEGMENTS == SEGMENTS


@pytest.mark.ci
@pytest.mark.parametrize("content", ["nonsense", "[]", '{"segments": [{"place": "cpu"}]}'])
def test_a_damaged_segment_list_is_named(content: str, divided_archive: Path, tmp_path: Path, capsys: Capture) -> None:
    archive = unpack(divided_archive, tmp_path)
    damaged = next(archive.rglob(SEGMENTS))
    damaged.write_text(content)

    told = refusal(capsys, "inspect", archive)
    assert told.startswith("error: ")
    assert f"is damaged: {damaged.relative_to(archive)} is not a list of segments" in told


def test_a_manifest_of_another_format_is_printed_for_machines(tmp_path: Path, capsys: Capture) -> None:
    archive = write_streaming_archive(tmp_path / "tiny", streaming_manifest(None, **ANY_SHAPE))
    (archive / "variants.json").write_text('{"format": 99}')

    assert printed(capsys, "inspect", archive, "--json") == '{"format": 99}'
