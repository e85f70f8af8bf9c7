"""Python files with a user's model."""

from pathlib import Path

ONE = """
import torch
class One(torch.nn.Module):
    def __init__(self, size, deep=False):
        super().__init__()
        self.linear = torch.nn.Linear(size, 2)
"""


def write(folder: Path, text: str, name: str = "the_model.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


TWO = f"{ONE}\nclass Two(torch.nn.Linear):\n    pass\n"
FUNCTION = '''
import torch
from torch.nn.functional import relu


def _twice(x):
    return 2 * x


def func(x, y):
    """Double and add."""
    return relu(_twice(x) + y)
'''
