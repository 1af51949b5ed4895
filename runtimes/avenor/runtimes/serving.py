"""The control server of one run: all its methods on one table."""

from collections.abc import Callable

from avenor.control.hub import EventHub, SingleHub
from avenor.control.reading import add_reading, add_snapshots
from avenor.control.rpc import MethodTable
from avenor.control.server import ControlServer
from avenor.control.subscriptions import add_subscriptions
from avenor.host.identity import ProcessId
from avenor.runtimes.host import RunHost
from avenor.runtimes.methods import RunMethods, no_such_runtime
from avenor.runtimes.router import Router


def make_server(
    host: RunHost, hub: EventHub, process: ProcessId, *, linked: Callable[[], None] = lambda: None
) -> ControlServer:
    """A server for a run, which serves nothing yet.

    Args:
        host: The run.
        hub: Its events.
        process: This process, for `ping`.
        linked: Called whenever a supervisor has introduced itself.
    """
    table = MethodTable()
    hubs = SingleHub(hub, lambda name: no_such_runtime(host, name))
    add_snapshots(table, hubs)
    add_reading(table, hubs)
    add_subscriptions(table, hubs)
    methods = RunMethods(host, process, hubs)
    methods.add_to(table)
    router = Router(host, hub, methods, table, linked)
    router.add_methods()
    server = ControlServer(table, router.connection_lost)
    router.tell_through(server)
    return server
