"""Tiles: registers for matrices (Intel's AMX), which Linux gives to a process on request.

The request and its numbers are those of the kernel's document "Using XSTATE features in user space applications".
"""

from __future__ import annotations

import ctypes
from functools import cache

_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
"""The system call on x86-64, its request, and the registers that are asked for."""


@cache
def may_use_tiles() -> bool:
    """Ask for tiles for this process, and for those that it forks; whether the system grants them.

    A kernel before 5.16 refuses, as do some sandboxes. Any kernel refuses while a thread's stack for signals is too
    small.
    """
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)
