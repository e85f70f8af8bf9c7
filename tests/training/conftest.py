import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Give every model the same weights in each run."""
    torch.manual_seed(0)
