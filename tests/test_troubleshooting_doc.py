"""Each message of docs/troubleshooting.md is one of the code, or of the TorchServe that is here."""

import ast
import re
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import ts
from import_rules import FOLDERS

pytestmark = pytest.mark.xdist_group("troubleshooting")  # the sources are read once
ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
MESSAGES = re.findall(r"^### (?:`(.+?)`)", TEXT, re.MULTILINE)
HARMLESS = re.findall(r"^\| `(.+?)` \| \w", TEXT.partition("## Lines without an effect")[2], re.MULTILINE)
ELSEWHERE = {
    "No module named 'yaml'": "Python",
    "No such file or directory: 'neuron_lstm.py'": "Python",
    "413 Request Entity Too Large": "Netty, the server library of TorchServe",
    "sun.reflect.Reflection.getCallerClass is not supported": "Log4j, the logging library of TorchServe",
    "Failed to initialize NumPy": "torch",
}
"""Messages of other programs: each was seen on a real server."""
GAP = "…"


def literals(tree: ast.AST) -> Iterator[str]:
    """The texts of a program, with `…` for what is formatted into them."""
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else GAP for part in node.values]
            yield "".join(str(part) for part in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.value


@cache
def our_texts() -> tuple[str, ...]:
    files = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return tuple(text for path in files for text in literals(ast.parse(path.read_text("utf-8"))))


@cache
def torchserve_texts() -> str:
    """The Python files of TorchServe and the constants of its Java classes, as one text."""
    package = Path(ts.__path__[0])
    python = "".join(path.read_text("utf-8") for path in sorted(package.glob("*.py")))
    with zipfile.ZipFile(package / "frontend" / "model-server.jar") as jar:
        names = [name for name in jar.namelist() if name.startswith("org/pytorch/serve/") and name.endswith(".class")]
        return python + "".join(jar.read(name).decode("latin-1") for name in names)


def fragments(message: str) -> list[str]:
    """The fixed parts of a message.

    >>> fragments("the programs need glibc …, this host has …")
    ['the programs need glibc ', ', this host has ']
    """
    return [part for part in message.split(GAP) if part.strip()]


def is_ours(message: str) -> bool:
    """Whether one text of the package has the fixed parts in this order, and values between them."""
    pattern = re.compile(re.escape(message.strip(GAP)).replace(re.escape(GAP), "[^…]*…[^…]*?"), re.DOTALL)
    return any(pattern.search(text) for text in our_texts())


def is_torchserves(message: str) -> bool:
    """Whether TorchServe has each fixed part; Python's own formatting marks are %s."""
    return all(part in torchserve_texts() for part in fragments(message))


def section(title: str) -> list[str]:
    return re.findall(r"^### `(.+?)`", TEXT.partition(f"## {title}\n")[2].partition("\n## ")[0], re.MULTILINE)


@pytest.mark.parametrize("message", [*MESSAGES, *HARMLESS])
def test_every_message_is_in_the_code_that_writes_it(message: str) -> None:
    assert fragments(message)
    assert is_ours(message) or is_torchserves(message) or message in ELSEWHERE


@pytest.mark.parametrize(
    ("title", "others"),
    [
        ("A model does not load", {"Failed to load model …, exception …", "No module named 'yaml'"}),
        ("The handler refuses a request", set()),
        ("Packaging refuses a model", {"No such file or directory: 'neuron_lstm.py'"}),
    ],
)
def test_messages_of_the_plug_in_are_in_its_source(title: str, others: set[str]) -> None:
    """TorchServe may have the same words by chance."""
    assert [message for message in section(title) if not is_ours(message) and message not in others] == []
    assert len(section(title)) >= 6


def test_messages_of_torchserve_are_in_its_code() -> None:
    for title in ("TorchServe does not start", "TorchServe refuses a request"):
        assert [one for one in section(title) if not is_torchserves(one) and one not in ELSEWHERE] == []


def test_every_message_is_a_heading_of_its_own() -> None:
    entries = [entry.partition("\n")[2].partition("\n## ")[0] for entry in re.split(r"^### ", TEXT, flags=re.MULTILINE)]

    assert 25 <= len(MESSAGES) == len(set(MESSAGES)) <= 40
    assert len(MESSAGES) == len(re.findall(r"^### ", TEXT, re.MULTILINE))
    assert all(len(entry.split()) >= 8 for entry in entries)


@pytest.mark.parametrize("quoted", ["a request failed unexpectedly", "… sequences planned together failed"])
def test_the_lines_before_a_traceback_are_those_of_the_log(quoted: str) -> None:
    assert f"`{quoted}`" in TEXT
    assert any(quoted.strip("… ") in text for text in our_texts())


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("this archive needs …, which is not installed here", True),
        ("this archive needs which is not installed here", False),
        ("this archive wants …, which is not installed here", False),
    ],
)
def test_a_message_that_nobody_writes_is_found(message: str, expected: bool) -> None:
    assert is_ours(message) is expected
