"""Asks the owner of the run which side of a disagreement holds; both sides are kept, whatever the answer is."""

import msgspec

from avenor.protocol.events import PermissionOption
from avenor.protocol.manifest.events import JoinEvent
from avenor.protocol.manifest.joining import Conflict
from avenor.runtimes.backends.base import PermissionAsk
from avenor.runtimes.manifest.attempts import Setting


async def ask_about(setting: Setting, join_id: str) -> None:
    """Asks about every conflict of a join, one after the other, and tells what was decided.

    An answer that is withdrawn because the run ends decides nothing.
    """
    event = setting.look().state.joins[join_id]
    decisions: list[str] = []
    for conflict in event.conflicts:
        option = await _ask(setting, join_id, conflict)
        if option is None:
            return
        decisions.append(f"{conflict.subject}: {option.name}")
    told = JoinEvent(
        join_id=join_id,
        state="decided",
        permitted_by=event.permitted_by,
        accepted=event.accepted,
        rejected=event.rejected,
        conflicts=event.conflicts,
        duplicates=event.duplicates,
        decision="; ".join(decisions),
    )
    setting.journal.tell([told])


async def _ask(setting: Setting, join_id: str, conflict: Conflict) -> PermissionOption | None:
    """The side that was chosen."""
    options = [
        PermissionOption(option_id=f"side_{number}", kind="allow_once", name=f"{side.claim} ({side.task_id})")
        for number, side in enumerate(conflict.sides, 1)
    ]
    sides = "\n".join(f"- {side.task_id} claims: {side.claim}\n  {side.finding}" for side in conflict.sides)
    ask = PermissionAsk(
        tool=f"join {join_id}",
        question=f"Members disagree about {conflict.subject}. Which of these holds?\n{sides}",
        options=options,
        payload=msgspec.Raw(msgspec.json.encode(conflict)),
    )
    answer = await setting.host.broker.ask(ask, asker=setting.journal, session_id="", emit=setting.host.log.emit)
    return next((option for option in options if option.option_id == answer.option_id), None)
