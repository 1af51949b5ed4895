"""What an agent offers to set, and which of it is meant by a word. Pure.

Agents offer model, mode and thinking level as config options, as `modes` and `models`, or as both; config options come
first where there are both, since their answers tell the value that is now in force.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from avenor.runtimes.backends.acp_types import ConfigOption, ConfigValue, ModelState, ModeState, SessionResult
from avenor.runtimes.backends.profiles import SettingNames

LISTED_OFFERS = 20  # A message stays readable; the error's data has them all.

Via = Literal["config", "mode", "model"]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One value on offer, and its name for people."""

    value: str
    name: str = ""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that can be set.

    Attributes:
        via: Which request sets it.
        config_id: The id of the config option; empty for the other ways.
        current: The value in force, if the agent tells.
        choices: What is offered.
    """

    via: Via
    current: str | None
    choices: Sequence[Choice]
    config_id: str = ""

    def find(self, wanted: str) -> str | None:
        """The value that a user's word means: the value itself, or a name that only one choice has."""
        if any(choice.value == wanted for choice in self.choices):
            return wanted
        named = [choice.value for choice in self.choices if choice.name.casefold() == wanted.casefold()]
        return named[0] if len(named) == 1 else None

    def values(self) -> list[str]:
        """The values on offer, in the agent's order."""
        return [choice.value for choice in self.choices]


class Offers:
    """What the session offers now. Agents change it as they go: `config_option_update`, `current_mode_update`."""

    def __init__(self, names: Mapping[str, SettingNames]) -> None:
        self._names = names
        self._config: list[ConfigOption] = []
        self._modes: ModeState | None = None
        self._models: ModelState | None = None

    def take_session(self, result: SessionResult) -> None:
        """Takes what the answer to session/new, load or resume offers."""
        self._modes = result.modes
        self._models = result.models
        self._config = result.config_options or []

    def take_config(self, options: list[ConfigOption] | None) -> None:
        """Takes a newer state of all config options."""
        if options is not None:
            self._config = options

    def take_mode(self, mode: str) -> None:
        """Takes the mode that is now in force."""
        if self._modes is not None:
            self._modes = msgspec.structs.replace(self._modes, current_mode_id=mode)

    def take_model(self, model: str) -> None:
        """Takes the model that is now in force."""
        if self._models is not None:
            self._models = msgspec.structs.replace(self._models, current_model_id=model)

    def setting(self, kind: str) -> Setting | None:
        """The setting of that kind (`agent`, `model`, `thinking`); None if the agent offers none."""
        option = self._config_option(self._names[kind])
        if option is not None:
            return Setting(
                via="config",
                config_id=option.id,
                current=option.current_value if isinstance(option.current_value, str) else None,
                choices=list(_flat(option.options or [])),
            )
        if kind == "agent" and self._modes is not None:
            modes = [Choice(value=mode.id, name=mode.name) for mode in self._modes.available_modes]
            return Setting(via="mode", current=self._modes.current_mode_id, choices=modes)
        if kind == "model" and self._models is not None:
            models = [Choice(value=model.model_id, name=model.name) for model in self._models.available_models]
            return Setting(via="model", current=self._models.current_model_id, choices=models)
        return None

    def current(self, kind: str) -> str | None:
        """The value in force, if the agent tells."""
        setting = self.setting(kind)
        return None if setting is None else setting.current

    def values(self, kind: str) -> list[str]:
        """The values on offer; empty if there is no such setting."""
        setting = self.setting(kind)
        return [] if setting is None else setting.values()

    def _config_option(self, names: SettingNames) -> ConfigOption | None:
        selects = [option for option in self._config if option.options is not None]
        for wanted in names.ids:
            for option in selects:
                if option.id == wanted:
                    return option
        return next((option for option in selects if option.category in names.categories), None)


def _flat(values: list[ConfigValue]) -> Iterator[Choice]:
    for item in values:
        if item.options is not None:
            yield from _flat(item.options)
        elif item.value is not None:
            yield Choice(value=item.value, name=item.name)


def list_offers(values: Sequence[str]) -> str:
    """The offers as a message lists them."""
    shown = ", ".join(values[:LISTED_OFFERS])
    more = len(values) - LISTED_OFFERS
    return f"{shown} and {more} more" if more > 0 else shown
