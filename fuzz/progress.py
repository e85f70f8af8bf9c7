"""Lines that libFuzzer writes while it runs, and at its end."""

from __future__ import annotations

import re

_STATUS = re.compile(r"#(\d+)\s+[A-Za-z]")
_TOTAL = re.compile(r"stat::number_of_executed_units:\s+(\d+)")
_DETAIL = re.compile(r"#\d+.*?cov: (\d+) .*?exec/s: (\d+)")


def runs_of(line: str) -> int | None:
    r"""Return the inputs that were run so far, as a line of libFuzzer tells them; None for another line.

    >>> runs_of("#2048\tpulse  cov: 571 ft: 1290 corp: 94/7712b lim: 4096 exec/s: 682 rss: 402Mb")
    2048
    >>> runs_of("stat::number_of_executed_units: 5000")
    5000
    >>> runs_of("INFO: Running with entropic power schedule (0xFF, 100).")
    """
    match = _TOTAL.match(line) or _STATUS.match(line)
    return int(match[1]) if match else None


def shown_progress(line: str) -> str | None:
    r"""Return a line of libFuzzer for people; None for one that tells nothing of the progress.

    >>> shown_progress("#2048\tpulse  cov: 571 ft: 1290 corp: 94/7712b lim: 4096 exec/s: 682 rss: 402Mb")
    '2048 runs, 571 places reached, 682 runs per second'
    """
    match = _DETAIL.match(line)
    return f"{runs_of(line)} runs, {match[1]} places reached, {match[2]} runs per second" if match else None
