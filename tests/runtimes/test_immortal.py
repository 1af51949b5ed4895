"""Immortal objects: only in interpreters that are known, and there all that a fork would write to."""

import json
import subprocess
import sys

_IS_KNOWN = sys.version_info[:2] in ((3, 12), (3, 13))
_LOOK = """
import json, sys
from avenor.runtimes import eventlog, immortal
class Kept:
    def method(self, first): return {"name of a key": first}
immortal.immortalize()
code = Kept.method.__code__
below = [Kept, Kept.method, code, code.co_consts, "name of a key", eventlog.EventLog.emit]
made_later = object()
print(json.dumps([[sys.getrefcount(each) == 0xFFFFFFFF for each in below], sys.getrefcount(made_later)]))
"""


def test_what_was_there_is_immortal_and_what_comes_later_is_not() -> None:
    """Classes, functions, code, constants; in an interpreter with another layout nothing is touched."""
    done = subprocess.run([sys.executable, "-c", _LOOK], capture_output=True, text=True, check=True)
    are_immortal, later = json.loads(done.stdout)
    assert are_immortal == [_IS_KNOWN] * 6
    assert later == 2
