"""The methods by which a supervisor's link passes on what its clients ask, and what it is told in return.

A link is never a client itself: it names the client in each call. So one connection speaks for many, and the runtime
alone knows who owns the run.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from avenor.control.hub import EventHub
from avenor.control.rpc import Call, MethodTable
from avenor.control.server import ControlServer
from avenor.protocol.errors import Unsupported
from avenor.protocol.methods import (
    NoParams,
    Ok,
    OwnerChanged,
    RouterCall,
    RouterHello,
    RouterLeft,
    RouterNotice,
    RouterOwner,
    RouterReaped,
)
from avenor.runtimes.endings import Cause
from avenor.runtimes.host import RunHost
from avenor.runtimes.methods import RunMethods
from avenor.runtimes.ownership import Client

# What a link asks for itself; nobody else's events go over its connection.
_NOT_ROUTED = ("subscribe", "unsubscribe")


class Router:
    """The links to supervisors, usually one.

    Args:
        host: The run.
        hub: Its events.
        methods: Who answers `ping`, which `router.hello` answers too.
        table: Where routed calls are looked up.
        linked: Called for each link, once it has introduced itself.
    """

    def __init__(
        self, host: RunHost, hub: EventHub, methods: RunMethods, table: MethodTable, linked: Callable[[], None]
    ) -> None:
        self._host = host
        self._hub = hub
        self._methods = methods
        self._table = table
        self._linked = linked
        self._links: set[str] = set()
        self._server: ControlServer | None = None

    def add_methods(self) -> None:
        """Registers the router's methods."""
        self._table.add("router.hello", NoParams, self._hello)
        self._table.add("router.call", RouterCall, self._route)
        self._table.add("router.left", RouterLeft, self._left)
        self._table.add("router.reap", NoParams, self._reap)

    def tell_through(self, server: ControlServer) -> None:
        """Tells clients through this server from now on."""
        self._server = server
        self._host.on_owner_change = self._owner_changed

    def connection_lost(self, connection: str) -> None:
        """A connection is gone: what it owned, or any client named over it, is free."""
        self._links.discard(connection)
        self._host.connection_lost(connection)

    def _hello(self, call: Call, _params: NoParams) -> RouterHello:
        self._links.add(call.connection.client_id)
        self._linked()
        return RouterHello(ping=self._methods.pong(), snapshot=self._hub.snapshot())

    def _route(self, call: Call, params: RouterCall) -> Any:
        if params.method.startswith("router.") or params.method in _NOT_ROUTED:
            raise Unsupported(f"{params.method} cannot be called in another's name")
        inner = Call(call.connection, params.client, call.request_id)
        result = self._table.invoke(inner, params.method, Raw(b"{}") if params.params is UNSET else params.params)
        if inner.is_detached:
            call.detach()
        return result

    def _left(self, call: Call, params: RouterLeft) -> Ok:
        self._host.release_ownership(Client(connection=call.connection.client_id, name=params.client))
        return Ok()

    def _reap(self, _call: Call, _params: NoParams) -> RouterReaped:
        return RouterReaped(reaped=self._host.reap(Cause(stop_reason="cancelled", reason="reaped while it was parked")))

    def _owner_changed(self, before: Client | None) -> None:
        self._hub.touch()
        owner = self._host.ownership.owner_name
        if self._server is None:
            return
        for link in self._links:
            self._server.notify(link, RouterOwner(owner=owner), method="router.owner")
        if before is not None and self._host.ownership.owner is not None:
            self._tell(self._server, before, OwnerChanged(runtime_id=self._host.record.runtime_id or None, owner=owner))

    def _tell(self, server: ControlServer, client: Client, notice: OwnerChanged) -> None:
        if client.connection in self._links:
            wrapped = RouterNotice(client=client.name, params=Raw(msgspec.json.encode(notice)))
            server.notify(client.connection, wrapped, method="router.notice")
        else:
            server.notify(client.connection, notice)
