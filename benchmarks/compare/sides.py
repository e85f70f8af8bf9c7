"""The two commits, each in a separate folder."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

WORKING_TREE = "the working tree"


class NoSuchCommit(RuntimeError):
    """Git cannot check out the commit; the message holds git's output."""


@dataclass(frozen=True)
class Side:
    """One of the two sides."""

    name: str
    """`base` or `head`."""
    commit: str
    """The description for people: the abbreviated hash and the subject."""
    root: Path
    """A checkout that nothing else writes to."""


@contextmanager
def checked_out(repository: Path, base: str, head: str | None, folder: Path) -> Iterator[tuple[Side, Side]]:
    """Both sides below `folder`, until the end of the context.

    Without `head`, the second side is a copy of the current working tree.

    Raises:
        NoSuchCommit: git does not know a name.
    """
    with _worktree(repository, base, folder / "base") as before:
        if head is None:
            copy_working_tree(repository, folder / "head")
            yield before, Side("head", WORKING_TREE, folder / "head")
        else:
            with _worktree(repository, head, folder / "head") as changed:
                yield before, changed


def copy_working_tree(repository: Path, target: Path) -> None:
    """Copy every file that git tracks or would add, in its current state.

    Later edits do not reach a running comparison.
    """
    names = _git(repository, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for name in filter(None, names):
        source, copy = repository / name, target / name
        if source.is_symlink() or source.is_file():  # a deleted file is still tracked
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy, follow_symlinks=False)


@contextmanager
def _worktree(repository: Path, revision: str, root: Path) -> Iterator[Side]:
    commit = _git(repository, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}").strip()
    subject = _git(repository, "log", "-1", "--format=%h %s", commit).strip()
    _git(repository, "worktree", "add", "--detach", str(root), commit)
    try:
        yield Side(root.name, subject, root)
    finally:
        _git(repository, "worktree", "remove", "--force", str(root))


def _git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=repository, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoSuchCommit(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
