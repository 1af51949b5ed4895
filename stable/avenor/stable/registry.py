"""All runtimes of one supervisor, live and ended, and how they are found."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from avenor.control.hub import EventHub
from avenor.protocol.errors import NoSuchRuntime
from avenor.stable.runtime import Runtime

# More candidates than this help nobody to choose.
_SHOWN: Final = 20


class Registry:
    """The runtimes by id, in the order in which they came. Also the source of their hubs for the control server.

    Attributes:
        by_key: The runtime of each spawn that had a `key`.
    """

    def __init__(self) -> None:
        self.by_key: dict[str, Runtime] = {}
        self._all: dict[str, Runtime] = {}
        self._live: dict[str, Runtime] = {}
        self._on_added: list[Callable[[EventHub], None]] = []

    def __iter__(self) -> Iterator[Runtime]:
        return iter(self._all.values())

    @property
    def live(self) -> tuple[Runtime, ...]:
        """Those whose end is still to come."""
        return tuple(self._live.values())

    @property
    def busy_count(self) -> int:
        """How many of the places are taken."""
        return sum(runtime.is_busy for runtime in self._live.values())

    def add(self, runtime: Runtime) -> None:
        """Take a runtime in, among its parent's children too."""
        self._all[runtime.id] = runtime
        if runtime.is_live:
            self._live[runtime.id] = runtime
        if runtime.record.key is not None:
            self.by_key.setdefault(runtime.record.key, runtime)
        parent = self._all.get(runtime.record.parent_id or "")
        if parent is not None:
            parent.state.children = [*parent.state.children, runtime.id]
            parent.revise()
        for action in self._on_added:
            action(runtime.hub)

    def note_ended(self, runtime: Runtime) -> None:
        """The runtime is live no more."""
        self._live.pop(runtime.id, None)

    def forget(self, runtime: Runtime) -> None:
        """The runtime has ended, and its directory goes."""
        runtime.hub.retire()
        # They refer to each other: together they would stay until the collector comes, which may be a thousand runs.
        runtime.link = None
        del self._all[runtime.id]
        if self.by_key.get(runtime.record.key or "") is runtime:
            del self.by_key[runtime.record.key or ""]
        parent = self._all.get(runtime.record.parent_id or "")
        if parent is not None:
            parent.state.children = [child for child in parent.state.children if child != runtime.id]
            parent.revise()

    def get(self, runtime_id: str) -> Runtime | None:
        """The runtime with this id."""
        return self._all.get(runtime_id)

    def resolve(self, runtime_id: str | None) -> Runtime:
        """The runtime that a client means: by its id, its run id or its label; with none of them, the only live one.

        Raises:
            NoSuchRuntime: There is none, or several could be meant; `data.candidates` lists those.
        """
        if runtime_id is None:
            return self._only_live()
        runtime = self._all.get(runtime_id)
        return self._named(runtime_id) if runtime is None else runtime

    def ancestors(self, runtime: Runtime) -> Iterator[Runtime]:
        """Its parent, the parent's parent, and so on, as far as they are known."""
        # Invariant: a parent is older than its children, so this ends.
        while (parent := self._all.get(runtime.record.parent_id or "")) is not None:
            yield parent
            runtime = parent

    def descendants(self, runtime: Runtime) -> list[Runtime]:
        """Its children, theirs, and so on, as far as they are known."""
        found: list[Runtime] = []
        above = [runtime]
        while above:
            children = [self._all.get(child) for child in above.pop().state.children]
            known = [child for child in children if child is not None]
            found += known
            above += known
        return found

    def tree_size(self, runtime: Runtime) -> int | None:
        """How many runtimes of its tree work or wait for a place; None if neither it nor one above it lives.

        Args:
            runtime: The parent of a child that is to come.
        """
        if not any(each.is_live for each in (runtime, *self.ancestors(runtime))):
            return None
        root = self._root_id(runtime)
        return sum(other.counts_in_tree and self._root_id(other) == root for other in self._live.values())

    def find(self, runtime_id: str | None) -> EventHub:
        """See `HubSource.find`."""
        return self.resolve(runtime_id).hub

    def all_hubs(self) -> Iterable[EventHub]:
        """See `HubSource.all_hubs`."""
        return [runtime.hub for runtime in self._all.values()]

    def on_hub_added(self, action: Callable[[EventHub], None]) -> None:
        """See `HubSource.on_hub_added`."""
        self._on_added.append(action)

    def _named(self, name: str) -> Runtime:
        """The runtime with this run id or label; of several, the only live one, else the newest.

        A run that goes on with the session of an ended one has its label.
        """
        named = [
            runtime for runtime in self._all.values() if name in (runtime.record.run_id, runtime.record.spec.label)
        ]
        chosen = [runtime for runtime in named if runtime.is_live] or named[-1:]
        if len(chosen) == 1:
            return chosen[0]
        if not chosen:
            raise NoSuchRuntime(
                f"there is no runtime {name!r}: `list` shows all", data={"candidates": self._candidates()}
            )
        ids = [runtime.id for runtime in chosen]
        raise NoSuchRuntime(
            f"{len(ids)} runtimes are called {name!r}: name one of them by its id ({', '.join(ids[:_SHOWN])})",
            data={"candidates": ids},
        )

    def _only_live(self) -> Runtime:
        candidates = self._candidates()
        if len(self._live) == 1:
            return next(iter(self._live.values()))
        if not candidates:
            raise NoSuchRuntime("no runtime is live: name the one that you mean", data={"candidates": []})
        raise NoSuchRuntime(
            f"{len(self._live)} runtimes are live: name the one that you mean ({', '.join(candidates[:_SHOWN])})",
            data={"candidates": candidates},
        )

    def _candidates(self) -> list[str]:
        return list(self._live)

    def _root_id(self, runtime: Runtime) -> str:
        *_, root = (runtime, *self.ancestors(runtime))
        return root.id
