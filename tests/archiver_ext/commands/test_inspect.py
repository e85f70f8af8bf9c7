"""The output of `neuron-lstm inspect` for a streaming archive: a step beside a whole sequence."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from fake_model import GRID, SUMS, TOTAL
from printed import Capture, printed, refusal
from streaming_archive import call_ms, streaming_manifest, write_streaming_archive

from torchserve_neuron_lstm.archiver_ext import report_parts
from torchserve_neuron_lstm.archiver_ext.commands.inspect import step_times
from torchserve_neuron_lstm.backends.partitioning.partitioned_program import SEGMENTS
from torchserve_neuron_lstm.bucketing.shapes import Bucket
from torchserve_neuron_lstm.config.manifest import FILE_NAME, AcceptedRange, CostMeasurement, MeasuredCost, Variant
from torchserve_neuron_lstm.config.manifest_writer import manifest_text
from torchserve_neuron_lstm.config.streaming import StreamingConfig

SETTINGS = StreamingConfig().settings("0" * 32)
ANY_SHAPE = {"shapes": "any", "variants": (Variant("chunk", None, "programs/fake"),)}


def test_an_engine_for_every_shape_computes_one_timestep_and_one_of_fixed_shapes_its_smallest_bucket() -> None:
    times = step_times(streaming_manifest(SETTINGS, **ANY_SHAPE))
    fixed = step_times(streaming_manifest(SETTINGS))

    assert [time["sessions"] for time in times] == [1, 4]
    assert [time["step_ms"] for time in times] == pytest.approx([call_ms(Bucket(1, 1)), call_ms(Bucket(4, 1))])
    assert [time["whole_ms"] for time in times] == pytest.approx([call_ms(Bucket(1, 8)), call_ms(Bucket(4, 8))])
    assert {time["whole_timesteps"] for time in times} == {8}
    assert [time["step_ms"] for time in fixed] == pytest.approx([call_ms(Bucket(1, 4)), call_ms(Bucket(4, 4))])


def test_answers_without_time_cost_a_call_of_their_own() -> None:
    """A stream gives them with every chunk."""
    heads = tuple(MeasuredCost("head", Bucket(batch, 1), 0.25 * batch) for batch in GRID.batches)
    plain = streaming_manifest(SETTINGS, **ANY_SHAPE)
    headed = streaming_manifest(
        SETTINGS,
        shapes="any",
        outputs=(SUMS, TOTAL),
        variants=(*plain.variants, Variant("head", None, "programs/fake")),
        costs=(*plain.costs, *heads),
    )

    for without, with_ in zip(step_times(plain), step_times(headed), strict=True):
        assert with_["step_ms"] - without["step_ms"] == pytest.approx(0.25 * with_["sessions"])
        assert with_["whole_ms"] - without["whole_ms"] == pytest.approx(0.25 * with_["sessions"])


def test_the_command_tells_people_and_machines(tmp_path: Path, capsys: Capture) -> None:
    manifest = streaming_manifest(SETTINGS, **ANY_SHAPE)
    archive = write_streaming_archive(tmp_path / "tiny", manifest)

    shown = printed(capsys, "inspect", archive)
    assert "sessions are kept on the host's disk" in shown
    assert "8 timesteps, ms" in shown
    told = json.loads(printed(capsys, "inspect", archive, "--json"))
    assert told.pop("step_times")[0] == {
        "sessions": 1,
        "step_ms": pytest.approx(1.1),
        "whole_timesteps": 8,
        "whole_ms": pytest.approx(1.8),
    }
    assert told == json.loads(manifest_text(manifest))


def test_what_does_not_stream_is_told_as_before(tmp_path: Path, capsys: Capture) -> None:
    manifest = streaming_manifest(None, **ANY_SHAPE)
    archive = write_streaming_archive(tmp_path / "tiny", manifest)

    assert printed(capsys, "inspect", archive, "--json") == manifest_text(manifest)
    assert "1 timestep, ms" not in printed(capsys, "inspect", archive)


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
def test_json_for_a_terminal_has_the_values_of_the_manifest(
    version: int | None, tmp_path: Path, capsys: Capture
) -> None:
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
def test_a_damaged_list_of_segments_is_named(
    content: str, divided_archive: Path, tmp_path: Path, capsys: Capture
) -> None:
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


def test_batches_of_any_size_are_not_planned() -> None:
    """A manifest of 2 KB may name batches of billions of rows."""
    grid = replace(GRID, batches=(1, 4, 2**31))
    assert step_times(streaming_manifest(SETTINGS, grid=grid)) == []
