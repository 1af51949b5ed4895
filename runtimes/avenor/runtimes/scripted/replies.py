"""What a script does after a reply. Pure."""

import re
from collections.abc import Sequence

from avenor.protocol.script import OnReply, Step


def steps_after(listed: Sequence[OnReply], reply: str) -> list[Step] | None:
    """The steps of the first that fits; None if none does."""
    return next((found.steps for found in listed if re.search(found.match or "", reply)), None)
