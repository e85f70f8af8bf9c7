import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Give every model the same weights in each run."""
    torch.default_generator.manual_seed(0)
