import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.config import histogram
from torchserve_neuron_lstm.config.histogram import LOG_PREFIX, LengthsError, parse_lengths, read_lengths
from torchserve_neuron_lstm.handlers.batch import BatchStats
from torchserve_neuron_lstm.handlers.metrics import BatchMetrics

LOG = """\
2026-03-04T05:06:07,008 [INFO ] W-9000-tagger_1.0-stdout MODEL_LOG - Torch worker started.
2026-03-04T05:06:08,008 [INFO ] W-9000-tagger_1.0-stdout MODEL_LOG - neuron_lstm lengths 3:2 12:1
2026-03-04T05:06:09,008 [INFO ] W-9001-my_scorer_2.1-stdout MODEL_LOG - neuron_lstm lengths 7:4
2026-03-04T05:06:10,008 [WARN ] W-9000-tagger_1.0-stderr MODEL_LOG - neuron_lstm lengths are odd today
2026-03-04T05:06:11,008 [INFO ] W-9002-tagger_1.0-stdout MODEL_LOG - neuron_lstm lengths 12:5 300:1
"""

histograms = st.dictionaries(st.integers(1, 10**6), st.integers(1, 10**6), min_size=1)


def listed(text: str) -> dict[int, int]:
    return parse_lengths(text.encode()).histogram()


@pytest.mark.parametrize(
    "text",
    [
        *("3\n3\n12\n", "3 3 12", "12,3,3", "12, 3\t3\r\n", "3:2 12:1", "3\n3:1\n12:1\n 9:0"),
        *("# drawn by hand\n3 3  # two\n\n12 # one", "\ufeff3 3 12", "003 3 12"),
    ],
)
def test_a_list_is_separated_by_anything_usual(text: str) -> None:
    assert listed(text) == {3: 2, 12: 1}


@given(st.lists(st.integers(1, 500), min_size=1))
def test_lengths_are_counted(lengths: list[int]) -> None:
    found = listed("\n".join(map(str, lengths)))

    assert found == Counter(lengths)
    assert list(found) == sorted(found)


@given(st.lists(histograms, min_size=1, max_size=5))
def test_the_lines_of_a_log_add_up(batches: list[dict[int, int]]) -> None:
    lines = ["neuron_lstm lengths " + " ".join(f"{n}:{c}" for n, c in batch.items()) for batch in batches]
    total: Counter[int] = Counter()
    for batch in batches:
        total.update(batch)

    assert listed("noise 1 2 3\n" + "\n".join(f"[INFO ] {line}" for line in lines)) == total


@given(st.lists(st.integers(1, 10**6), min_size=1))
def test_what_the_handler_writes_is_read_back(lengths: list[int]) -> None:
    counts = BatchMetrics(requests=1, stats=BatchStats(lengths=tuple(lengths)))

    assert listed(f"W-9000-m_1.0-stdout MODEL_LOG - {LOG_PREFIX}{counts.lengths_text}\nmore") == Counter(lengths)


def test_a_log_keeps_models_apart() -> None:
    observed = parse_lengths(LOG.encode())

    assert observed.by_model == {"tagger": {3: 2, 12: 6, 300: 1}, "my_scorer": {7: 4}}
    assert observed.histogram("tagger") == {3: 2, 12: 6, 300: 1}
    with pytest.raises(LengthsError, match="has lengths of 2 models: my_scorer, tagger"):
        observed.histogram()
    with pytest.raises(LengthsError, match="has no lengths of the model other, but of my_scorer, tagger"):
        observed.histogram("other")


def test_lists_belong_to_every_model() -> None:
    both = parse_lengths(LOG.encode()) + parse_lengths(b"3 4")

    assert both.histogram("my_scorer") == {3: 1, 4: 1, 7: 4}
    assert (parse_lengths(b"3") + parse_lengths(b"3:4 5")).histogram() == {3: 5, 5: 1}
    with pytest.raises(LengthsError, match="has no lengths of the model tagger, but of no model"):
        histogram.LengthHistogram({None: {3: 1}}).histogram("tagger")


@pytest.mark.parametrize(
    "cut", ["neuron_lstm lengths 12:3 50:", "neuron_lstm lengths 12:3 5", "neuron_lstm lengths 12:3 x"]
)
def test_the_end_of_a_log_may_be_cut_off(cut: str) -> None:
    assert listed(f"neuron_lstm lengths 7:1\n[INFO ] {cut}") == {7: 1, 12: 3}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "holds no lengths"),
        (b"# nothing\n\n", "holds no lengths"),
        (b"5:0", "holds no lengths"),
        (b"neuron_lstm lengths are odd", "holds no lengths"),
        (b"12\n13\n0\n", "from 1 on, as in 12 or 12:3 for three sequences of 12, got '0' in line 3 (nor is it a log"),
        (b"12 -3", "got '-3' in line 1"),
        (b"12.5", "got '12.5' in line 1"),
        (b"12:", "got '12:' in line 1"),
        (b"12:3:4", "got '12:3:4' in line 1"),
        ("١٢".encode(), "got '١٢' in line 1"),
        (b"9" * 5000, "got '9999"),
        (b"a\nb\nc\nd e\n", "got 'a' in line 1, 'b' in line 2, 'c' in line 3 and 2 more"),
        (b"\x89PNG\r\n\x00\xff", "in line 1"),
        (LOG.replace("lengths", "sizes").encode(), "no line has `neuron_lstm lengths`"),
    ],
)
def test_what_is_no_length_is_named_with_its_line(data: bytes, said: str) -> None:
    with pytest.raises(LengthsError) as refused:
        parse_lengths(data)

    message = str(refused.value)
    assert said in message
    assert len(message.splitlines()) == 1
    assert len(message) < 400


def test_beginnings_of_a_workers_name_take_linear_time() -> None:
    assert listed("W-1-" * 100_000 + " neuron_lstm lengths 12:3") == {12: 3}


@given(st.binary())
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        found = parse_lengths(data).histogram()
    except LengthsError:
        return
    assert found
    assert all(length >= 1 and number >= 1 for length, number in found.items())


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text("4 5 5\n")
    (tmp_path / "model_log.log").write_text(LOG)

    assert read_lengths(tmp_path / "lengths.txt") == {4: 1, 5: 2}
    with pytest.raises(LengthsError, match="2 models"):
        read_lengths(tmp_path / "model_log.log")


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    for path, said in (
        (tmp_path / "none", "cannot be read: No such file or directory"),
        (tmp_path, "not a regular file"),
        (tmp_path / "pipe", "not a regular file"),
        (Path("/dev/zero"), "not a regular file"),
        (Path("a\0b"), "cannot be read"),
        (Path("\ud800"), "cannot be read"),
        (Path("x" * 5000), "cannot be read: File name too long"),
    ):
        with pytest.raises(LengthsError, match=said):
            read_lengths(path)
