"""`subscribe` and `unsubscribe`: which connection gets which events."""

from functools import partial

from msgspec import UNSET

from avenor.control.connection import Connection
from avenor.control.feed import Feed
from avenor.control.hub import EventHub, HubSource
from avenor.control.interests import Interest
from avenor.control.rpc import Call, MethodTable
from avenor.protocol.errors import InvalidParams, LimitReached, Refused
from avenor.protocol.methods import SUBSCRIPTION_LIMIT, Ok, Subscribed, SubscribeParams, UnsubscribeParams


def add_subscriptions(table: MethodTable, hubs: HubSource) -> None:
    """Registers `subscribe` and `unsubscribe`."""
    subscriptions = Subscriptions(hubs)
    table.add("subscribe", SubscribeParams, subscriptions.subscribe)
    table.add("unsubscribe", UnsubscribeParams, subscriptions.unsubscribe)


class Subscriptions:
    """All subscriptions of a server's clients."""

    def __init__(self, hubs: HubSource) -> None:
        self._hubs = hubs
        self._subscribers: dict[Connection, _Subscriber] = {}
        hubs.on_hub_added(self._hub_added)

    def subscribe(self, call: Call, params: SubscribeParams) -> Subscribed:
        """Handler: the events come once the answer is out, and none that came before is missed."""
        _check(params)
        subscriber = self._subscriber(call.connection)
        if len(subscriber.subscriptions) >= SUBSCRIPTION_LIMIT:
            raise LimitReached(f"a connection may have {SUBSCRIPTION_LIMIT} subscriptions: unsubscribe from one first")
        is_for_all = params.runtime_id is None and params.after_seq is None
        hubs = list(self._hubs.all_hubs()) if is_for_all else [self._hubs.find(params.runtime_id)]
        subscription_id = subscriber.add(params, is_for_all)
        starts = [(hub, _start(hub, params)) for hub in hubs]
        call.after_answer(partial(subscriber.begin, subscription_id, starts))
        is_beyond = params.after_seq is not None and params.after_seq > hubs[0].latest_seq
        return Subscribed(
            subscribed=True,
            id=subscription_id,
            latest_seq=hubs[0].latest_seq if len(hubs) == 1 else UNSET,
            reset=True if is_beyond else UNSET,
        )

    def unsubscribe(self, call: Call, params: UnsubscribeParams) -> Ok:
        """Handler: after the answer none of its events comes any more, unless another subscription matches."""
        subscriber = self._subscribers.get(call.connection)
        if subscriber is None or not subscriber.remove(params.id):
            raise Refused(f"this connection has no subscription {params.id!r}", reason="no_such_subscription")
        return Ok()

    def _subscriber(self, connection: Connection) -> "_Subscriber":
        subscriber = self._subscribers.get(connection)
        if subscriber is None:
            subscriber = self._subscribers[connection] = _Subscriber(connection)
            connection.on_close.append(partial(self._left, connection))
        return subscriber

    def _left(self, connection: Connection) -> None:
        self._subscribers.pop(connection).close()

    def _hub_added(self, hub: EventHub) -> None:
        for subscriber in self._subscribers.values():
            subscriber.hub_added(hub)


class _Subscriber:
    """The subscriptions of one connection."""

    def __init__(self, connection: Connection) -> None:
        self.subscriptions: dict[str, SubscribeParams] = {}
        self._for_all: set[str] = set()
        self._connection = connection
        self._feeds: dict[EventHub, Feed] = {}
        self._last_id = 0

    def add(self, params: SubscribeParams, is_for_all: bool) -> str:
        self._last_id += 1
        subscription_id = f"s{self._last_id}"
        self.subscriptions[subscription_id] = params
        if is_for_all:
            self._for_all.add(subscription_id)
        self._connection.is_subscribed = True
        return subscription_id

    def begin(self, subscription_id: str, starts: list[tuple[EventHub, int]]) -> None:
        """Has the events come, unless it was unsubscribed from in the same batch."""
        params = self.subscriptions.get(subscription_id)
        if params is not None and not self._connection.outbox.is_broken:
            for hub, start in starts:
                self._add_interest(hub, subscription_id, params, start)

    def hub_added(self, hub: EventHub) -> None:
        for subscription_id in self._for_all:
            self._add_interest(hub, subscription_id, self.subscriptions[subscription_id], hub.latest_seq)

    def remove(self, subscription_id: str) -> bool:
        if self.subscriptions.pop(subscription_id, None) is None:
            return False
        self._for_all.discard(subscription_id)
        self._connection.is_subscribed = bool(self.subscriptions)
        for hub, feed in list(self._feeds.items()):
            feed.remove(subscription_id)
            if not feed.interests:
                self._close_feed(hub)
        return True

    def close(self) -> None:
        for hub in list(self._feeds):
            self._close_feed(hub)

    def _add_interest(self, hub: EventHub, subscription_id: str, params: SubscribeParams, start: int) -> None:
        feed = self._feeds.get(hub)
        if feed is None:
            feed = Feed(hub, self._connection.outbox, start, partial(self._close_feed, hub))
            self._feeds[hub] = feed
        names = None if params.events is None else frozenset(params.events)
        feed.add(subscription_id, Interest(names, start, params.on_lag == "disk"))

    def _close_feed(self, hub: EventHub) -> None:
        feed = self._feeds.pop(hub)
        feed.close()
        self._connection.outbox.forget(feed)


def _check(params: SubscribeParams) -> None:
    for field, value, least in (("after_seq", params.after_seq, 0), ("limit", params.limit, 0)):
        if value is not None and value < least:
            raise InvalidParams(f"subscribe: {field} must be {least} or more", data={"field": field})


def _start(hub: EventHub, params: SubscribeParams) -> int:
    """The `seq` after which a subscription's events begin. An `after_seq` beyond the end begins anew."""
    latest = hub.latest_seq
    if params.after_seq is not None:
        start = params.after_seq if params.after_seq <= latest else 0
    elif params.replay or params.limit is not None:
        start = 0
    else:
        return latest
    return start if params.limit is None else max(start, latest - params.limit)
