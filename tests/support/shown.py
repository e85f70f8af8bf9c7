"""Pages of the documentation, and their sections, tables, blocks of code and commands."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def section(markdown: str, title: str) -> str:
    return markdown.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def table(markdown: str, heading: str) -> list[list[str]]:
    """The cells of each row of the table whose first line begins with this text."""
    lines = markdown[markdown.index(heading) :].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def blocks(markdown: str, language: str = r"\w+") -> list[str]:
    r"""The fenced blocks of a text, in order.

    >>> blocks("see:\n```bash\nls\n```\n", "bash")
    ['ls\n']
    """
    return re.findall(rf"^```{language}\n(.*?)^```$", markdown, re.MULTILINE | re.DOTALL)


def commands(markdown: str, program: str) -> list[list[str]]:
    r"""The words of every shell command that begins with `program`.

    >>> commands("```bash\ncurl -d '[1, 2]' \\\n    there  # so\nls\n```\n", "curl")
    [['curl', '-d', '[1, 2]', 'there']]
    """
    lines = "".join(blocks(markdown, "bash")).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))[:1] == [program]]
