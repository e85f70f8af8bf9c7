"""State of another process."""

from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether the process exists, and has not ended without being waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
