"""Keeps the lease of an attempt as long as its agent lives; one that is not renewed counts as lost."""

import trio

from avenor.protocol.manifest.events import LeaseEvent
from avenor.protocol.manifest.state import Attempt
from avenor.runtimes.conversations import Conversation
from avenor.runtimes.manifest.journal import Journal
from avenor.runtimes.manifest.scheduler import LEASE_SECONDS, RENEW_SECONDS


async def keep_lease(journal: Journal, attempt: Attempt, conversation: Conversation, opened: trio.Event) -> None:
    """Renews a lease until the agent is gone, or it is cancelled.

    Until there is a session, its opening is what lives: that is bounded by the handshake's own deadline.

    Args:
        journal: Takes the renewals.
        attempt: Whose lease it is.
        conversation: With its agent.
        opened: Set once the session is open.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_renew, journal, attempt)
        await opened.wait()
        await conversation.wait_lost()
        nursery.cancel_scope.cancel()


async def _renew(journal: Journal, attempt: Attempt) -> None:
    while not attempt.is_over:
        await trio.sleep(RENEW_SECONDS)
        until = journal.clock.now_ms() + round(LEASE_SECONDS * 1000)
        journal.tell([LeaseEvent(attempt_id=attempt.attempt_id, until_ms=until)])
