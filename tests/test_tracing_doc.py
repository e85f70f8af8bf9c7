"""The examples of docs/tracing.md work, and every name on the page exists."""

import doctest
import inspect
import re
from pathlib import Path

import pytest
import torch

from torchserve_neuron_lstm import tracing

TEXT = (Path(__file__).parents[1] / "docs" / "tracing.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```pycon\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_block_does_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    test = doctest.DocTestParser().get_doctest("\n".join(BLOCKS), {}, "docs/tracing.md", "docs/tracing.md", 0)
    told: list[str] = []

    found = doctest.DocTestRunner(optionflags=flags, verbose=False).run(test, out=told.append)

    assert found.attempted > 20
    assert found.failed == 0, "".join(told)


def test_every_option_is_named() -> None:
    names = {
        name for func in (tracing.trace, tracing.bucket_model_trace) for name in inspect.signature(func).parameters
    }
    names |= set(inspect.signature(tracing.BucketModelConfig).parameters) - {"_", "bucket_kernel", "bucket_config"}
    names -= {"func", "args", "bucket_config"}

    assert {name for name in [*names, *tracing.__all__] if name not in TEXT} == {"Traced"}
