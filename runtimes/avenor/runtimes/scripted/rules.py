"""Which rule of the script a prompt is given to, and how often a rule was played."""

import re
import zlib

from avenor.protocol.script import Echo, Rule, Script, Step
from avenor.runtimes.scripted.session import Session
from avenor.runtimes.scripted.state import StateDirectory


class RuleBook:
    """The rules of a script, with their counts.

    Args:
        data: The script's text, which names it where it is counted: an edited script starts anew.
        run_id: The avenor run whose agents count together; None counts in this process.
    """

    def __init__(self, script: Script, data: bytes, *, state: StateDirectory, run_id: str | None) -> None:
        self._rules = script.rules
        self._fingerprint = f"{zlib.crc32(data):08x}"
        self._state = state
        self._run_id = run_id
        self._counts: dict[str, int] = {}

    def find(self, session: Session, prompt: str) -> tuple[int, list[Step]]:
        """The index and the steps of the first rule that fits, which counts as played; -1 and an echo if none does."""
        for index, rule in enumerate(self._rules):
            if (rule.match is None or re.search(rule.match, prompt)) and self._may_play(session, index, rule):
                return index, rule.steps
        return -1, [Echo()]

    def count(self, counter: str, limit: int) -> bool:
        """Counts one, unless the limit is reached; returns whether it was not."""
        counter = f"{self._fingerprint}.{counter}"
        if self._run_id is not None:
            return self._state.take_turn(self._run_id, counter, limit)
        count = self._counts.get(counter, 0)
        self._counts[counter] = min(count + 1, limit)
        return count < limit

    def _may_play(self, session: Session, index: int, rule: Rule) -> bool:
        if rule.times is None:
            return True
        if rule.per == "session":
            return sum(prompted.rule == index for prompted in session.prompts) < rule.times
        return self.count(str(index), rule.times)
