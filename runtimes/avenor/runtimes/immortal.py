"""Keeps forks from writing to what they have in common: reference counts that stand still (PEP 683).

A fork copies each page that it writes to, and counting references writes to everything that is looked at. CPython from
3.12 on does not count the references to an immortal object, and what was made before any fork may be one: no fork would
free it anyhow, as `gc.freeze` says of cycles. That halves what an idle runtime costs.

There is no interface for it, so this writes the count where CPython has it, in those versions whose layout is known and
was tried. In any other it does nothing, and runtimes only use more memory.
"""

import gc
import sys
import sysconfig
import types
from collections.abc import Sequence
from ctypes import memset
from typing import Any, Final

# 3.12 and 3.13, 64 bits: the low half of the count, with all bits set. 3.14 has another layout.
_IMMORTAL: Final = 0xFFFFFFFF
_COUNT_BYTES: Final = 4
_KNOWN_VERSIONS: Final = ((3, 12), (3, 13))

# CPython's own allocator has a place for each multiple of 16 bytes up to 512; what is larger goes to the C library's.
# There are a few dozen free places of a size, seldom hundreds.
_SMALL: Final = tuple(range(48, 513, 16))
_SMALL_COUNT: Final = 200
_LARGE: Final = (520, 700, 1000, 2000, 4000)
_LARGE_COUNT: Final = 20

# What a code object consists of; it does not tell the collector.
_CODE_PARTS: Final[Sequence[str]] = (
    "co_consts",
    "co_names",
    "co_filename",
    "co_name",
    "co_qualname",
    "co_linetable",
    "co_exceptiontable",
)


def immortalize() -> None:
    """Make every object that can be found immortal, where this interpreter is known to allow it; else nothing.

    For a process that only forks from now on: what is immortal is never freed.
    """
    if not _is_known():
        return
    for root in gc.get_objects():
        _keep(root)
        # The collector does not know what is below these: no cycle can go through it, so this ends.
        below = _parts(root)
        while below:
            found = below.pop()
            if _keep(found) and not gc.is_tracked(found):
                below += _parts(found)


def fill_gaps() -> list[bytes]:
    """Take the places that are free between the objects which are there; what is returned must be kept.

    Else a fork puts what it makes into them, and copies for each small object a page of the others.
    """
    return [bytes(size - sys.getsizeof(b"")) for size in (*_SMALL * _SMALL_COUNT, *_LARGE * _LARGE_COUNT)]


def _keep(found: object) -> bool:
    """Makes one object immortal; False if it was."""
    if sys.getrefcount(found) == _IMMORTAL:
        return False
    memset(id(found), 0xFF, _COUNT_BYTES)
    return True


def _is_known() -> bool:
    return (
        sys.implementation.name == "cpython"
        and sys.version_info[:2] in _KNOWN_VERSIONS
        and sys.maxsize > 2**32
        and sys.byteorder == "little"
        and sys.getrefcount(None) == _IMMORTAL
        and not hasattr(sys, "gettotalrefcount")  # a debug build checks its counts
        and not sysconfig.get_config_var("Py_GIL_DISABLED")  # which counts in two places
    )


def _parts(whole: Any) -> list[Any]:
    if type(whole) is types.CodeType:
        parts = [getattr(whole, name) for name in _CODE_PARTS]
        return [*parts, *whole.co_varnames, *whole.co_cellvars, *whole.co_freevars]
    parts = gc.get_referents(whole)
    if isinstance(whole, type):
        parts += [whole.__name__, whole.__qualname__]
    return parts
