"""One conversation with the scripted agent, and what ACP shows of its options."""

from collections.abc import Sequence
from typing import Any

from avenor.protocol.script import Choice, Script, choices
from avenor.runtimes.scripted.acp import McpServer
from avenor.runtimes.scripted.loop import Job
from avenor.runtimes.scripted.state import Answered, Chosen, Prompted, Record

# Option id, which is its ACP category too, and its name for people.
OPTION_NAMES = {"model": "Model", "mode": "Session mode", "thought_level": "Thought level"}


class Session:
    """A session in memory.

    Args:
        session_id: Its id.
        cwd: Its working directory, absolute.
        script: What the options on offer are taken from.
        mcp_servers: Whose tools it may call.
    """

    def __init__(self, session_id: str, cwd: str, script: Script, mcp_servers: Sequence[McpServer] = ()) -> None:
        self.session_id = session_id
        self.cwd = cwd
        self.prompts: list[Prompted] = []
        self.job: Job | None = None
        self.always_allowed: set[str] = set()
        self.cost_usd: float | None = None
        self.mcp_servers = list(mcp_servers)
        self.mcp_labels: dict[str, str] = {}  # by server, once it was greeted
        self.reply = ""
        self._capabilities = script.capabilities
        self.offered: dict[str, list[Choice]] = {
            "model": choices(script.models),
            "mode": choices(script.modes),
            "thought_level": choices(script.thought_levels),
        }
        self.chosen = {option: listed[0].id for option, listed in self.offered.items() if listed}

    def offers(self, option: str, value: str) -> bool:
        """Whether an option can be set to a value."""
        return value in self.value_ids(option)

    def value_ids(self, option: str) -> list[str]:
        return [choice.id for choice in self.offered.get(option, [])]

    def restore(self, records: list[Record]) -> list[dict[str, Any]]:
        """Takes over what a session's file says. Returns the updates that show the conversation to a client."""
        replay: list[dict[str, Any]] = []
        for record in records:
            match record:
                case Prompted():
                    self.prompts.append(record)
                    content = {"type": "text", "text": record.text}
                    update = {"sessionUpdate": "user_message_chunk", "messageId": record.message_id}
                    replay.append({**update, "content": content})
                case Answered():
                    replay += record.updates
                case Chosen() if self.offers(record.option, record.value):
                    self.chosen[record.option] = record.value
                case _:
                    pass
        return replay

    def config_options(self) -> list[dict[str, Any]]:
        """The options as ACP's config options."""
        return [
            {
                "id": option,
                "name": OPTION_NAMES[option],
                "category": option,
                "type": "select",
                "currentValue": self.chosen[option],
                "options": [_shown(choice, "value") for choice in listed],
            }
            for option, listed in self.offered.items()
            if listed
        ]

    def setup(self) -> dict[str, Any]:
        """What the answers to `session/new`, `session/load` and `session/resume` say of the options."""
        shown: dict[str, Any] = {}
        if self._capabilities.config_options:
            shown["configOptions"] = self.config_options()
        if self._capabilities.modes and self.offered["mode"]:
            available = [_shown(choice, "id") for choice in self.offered["mode"]]
            shown["modes"] = {"currentModeId": self.chosen["mode"], "availableModes": available}
        return shown

    def change_updates(self, option: str) -> list[dict[str, Any]]:
        """The updates that tell a client of an option that changed without its asking for it in this form."""
        updates: list[dict[str, Any]] = []
        if option == "mode" and self._capabilities.modes:
            updates.append({"sessionUpdate": "current_mode_update", "currentModeId": self.chosen["mode"]})
        if self._capabilities.config_options:
            updates.append({"sessionUpdate": "config_option_update", "configOptions": self.config_options()})
        return updates


def _shown(choice: Choice, key: str) -> dict[str, str]:
    shown = {key: choice.id, "name": choice.name or choice.id}
    return shown if choice.description is None else {**shown, "description": choice.description}
