"""Sections, blocks of code and commands of a page of the documentation."""

import re
import shlex


def section(markdown: str, title: str) -> str:
    return markdown.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


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
