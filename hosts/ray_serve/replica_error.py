"""Error that kept a replica from starting, extracted from Ray's message."""

from __future__ import annotations

import re

_RAISED = re.compile(r"^[\w.]*(?:Error|Exception): (.+)$", re.MULTILINE)


def error_of(message: str) -> str:
    r"""Return the last error of the tracebacks in a message; the whole message if it has none.

    >>> error_of("The replica did not start.\n  File ...\nerrors.ArchiveError: a.mar: model.pt was changed\n")
    'a.mar: model.pt was changed'
    """
    found = _RAISED.findall(message)
    return str(found[-1]) if found else message
