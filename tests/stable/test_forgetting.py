"""What the supervisor has forgotten is gone from its memory at once."""

import gc
import weakref
from pathlib import Path

import msgspec

from avenor.host.rundir import RunDir
from avenor.protocol.spec import Record, RunSpec
from avenor.stable.link import Link
from avenor.stable.registry import Registry
from avenor.stable.runtime import Runtime, Stage


class Deaf:
    """A listener that nobody talks to."""

    def runtime_changed(self, runtime: Runtime) -> None:
        """See `Listener.runtime_changed`."""
        raise AssertionError(runtime.id)

    def pass_notice(self, client: str, params: msgspec.Raw) -> None:
        """See `Listener.pass_notice`."""
        raise AssertionError(client)


def test_a_pruned_runtime_does_not_wait_for_the_collector(tmp_path: Path) -> None:
    """Thousands of runs that have come and gone take no more than a few: the collector may not come for a thousand."""
    registry = Registry()
    record = Record(runtime_id="rt_1", run_id="r", spec=RunSpec(), prompt="x")
    runtime = Runtime(RunDir(tmp_path), record, Stage.ENDED)
    runtime.link = Link(runtime, Deaf())
    registry.add(runtime)
    alive = weakref.ref(runtime.hub)
    gc.disable()
    try:
        registry.forget(runtime)
        del runtime
        assert alive() is None
    finally:
        gc.enable()
