"""Who may steer a run: one client at a time, decided by the runtime alone (contract, part 6)."""

import msgspec

from avenor.protocol.errors import NotOwner


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """A client of this runtime.

    Attributes:
        connection: The connection that it speaks on: its own, or the link of a supervisor.
        name: Its id at the server that it is connected to, as it is shown to people.
    """

    connection: str
    name: str


class Ownership:
    """The owner of one run. Every method is synchronous, so that deciding and recording are one step."""

    def __init__(self) -> None:
        self.owner: Client | None = None

    @property
    def owner_name(self) -> str | None:
        """The owner as a snapshot shows it."""
        return None if self.owner is None else self.owner.name

    def take(self, client: Client, *, force: bool = False) -> Client | None:
        """Makes the client the owner, or leaves it that.

        Returns:
            The client that lost the ownership by this, if one did.

        Raises:
            NotOwner: Somebody else owns the run, and `force` was not given.
        """
        previous = self.owner
        if previous == client:
            return None
        if previous is not None and not force:
            raise NotOwner(
                f"client {previous.name} owns this run: wait until it releases it",
                data={"owner": previous.name},
            )
        self.owner = client
        return previous

    def release(self, client: Client) -> bool:
        """Gives the ownership up; says whether the client had it. Also for a client that has left."""
        if self.owner != client:
            return False
        self.owner = None
        return True

    def connection_lost(self, connection: str) -> bool:
        """Releases what a connection, or any client named over it, owned; says whether that changed the owner."""
        if self.owner is None or self.owner.connection != connection:
            return False
        self.owner = None
        return True
