"""Faults that are sown: a rewritten line would leave nothing to sow."""

import json

import pytest
from tools.sow import ROOT, Fault, file_of

FAULTS = [Fault(**fault) for fault in json.loads((ROOT / "tools" / "faults.json").read_text("utf-8"))]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault.id))
def test_the_text_of_each_fault_stands_once_in_its_room(fault: Fault) -> None:
    assert fault.new != fault.old
    assert file_of(ROOT, fault).is_file()
