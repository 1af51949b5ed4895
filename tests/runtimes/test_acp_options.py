"""Which settings an agent offers, and what a user's word means among them."""

from typing import Any

import msgspec
import pytest
from acp import schema

from avenor.runtimes.backends.acp_options import Choice, Offers, Setting, list_offers
from avenor.runtimes.backends.acp_types import ConfigResult, InitializeResult, SessionResult
from avenor.runtimes.backends.profiles import SETTINGS, builtin
from tests.runtimes.transcripts import answers


def _offers(text: str) -> Offers:
    offers = Offers(builtin("acp").setting_names)
    offers.take_session(msgspec.json.decode(text, type=SessionResult))
    return offers


_BOTH = """{"sessionId": "s",
  "modes": {"currentModeId": "default", "availableModes": [
    {"id": "default", "name": "D"}, {"id": "plan", "name": "P"}]},
  "configOptions": [
    {"id": "provider", "category": "model", "type": "select", "currentValue": "p",
     "options": [{"value": "p", "name": "P"}]},
    {"id": "auto", "type": "boolean", "currentValue": true},
    {"id": "model", "category": "model", "type": "select", "currentValue": "a", "options": [
      {"group": "g", "name": "Group", "options": [
        {"value": "a", "name": "Model A"}, {"value": "b", "name": "Model B"}]},
      {"value": "c", "name": "Same"}, {"value": "d", "name": "same"}]},
    {"id": "effort", "category": "thought_level", "type": "select", "currentValue": "low",
     "options": [{"value": "low", "name": "Low"}, {"value": "high", "name": "High"}]}]}"""


def test_every_recorded_answer_to_opening_a_session_can_be_read() -> None:
    """Initialize and session answers of all agents are valid ACP, and give the offers that they make."""
    for name, answer in answers("initialize"):
        schema.InitializeResponse.model_validate(answer["result"])
        assert msgspec.convert(answer["result"], InitializeResult).protocol_version == 1, name
    opened = 0
    for method in ("session/new", "session/load", "session/resume"):
        for name, answer in answers(method):
            if "result" not in answer:
                continue
            result: dict[str, Any] = answer["result"]
            offers = Offers(builtin("acp").setting_names)
            offers.take_session(msgspec.convert(result, SessionResult))
            modes: dict[str, Any] = result.get("modes") or {}
            if modes:
                assert offers.current("agent") == modes["currentModeId"], name
                assert modes["currentModeId"] in offers.values("agent"), name
            options: list[dict[str, Any]] = result.get("configOptions") or []
            for option in options:
                if option["id"] == "model":
                    assert offers.current("model") == option["currentValue"], name
            opened += 1
    assert opened > 20


def test_every_recorded_answer_to_a_setting_tells_the_new_state() -> None:
    """`session/set_config_option` answers with all options, so that a setting can be verified."""
    checked = 0
    for name, answer in answers("session/set_config_option"):
        if "result" in answer:
            schema.SetSessionConfigOptionResponse.model_validate(answer["result"])
            assert msgspec.convert(answer["result"], ConfigResult).config_options, name
            checked += 1
    assert checked >= 5


def test_a_config_option_comes_before_modes_and_models() -> None:
    """Where an agent offers a setting in two ways, the one that can be verified is taken."""
    offers = _offers(_BOTH)
    model = offers.setting("model")
    assert model is not None
    assert (model.via, model.config_id, model.current) == ("config", "model", "a")
    assert model.values() == ["a", "b", "c", "d"]
    agent = offers.setting("agent")
    assert agent is not None
    assert (agent.via, agent.values()) == ("mode", ["default", "plan"])


def test_a_setting_is_found_by_its_category_when_its_id_is_unknown() -> None:
    """The thinking level of an agent that calls it `effort` is found by `thought_level`."""
    thinking = _offers(_BOTH).setting("thinking")
    assert thinking is not None
    assert (thinking.config_id, thinking.current) == ("effort", "low")


def test_an_agent_that_offers_nothing_has_no_settings() -> None:
    """No setting is not an empty setting."""
    offers = _offers('{"sessionId": "s"}')
    assert [offers.setting(kind) for kind in SETTINGS] == [None, None, None]
    assert offers.values("model") == []
    assert offers.current("model") is None


def test_the_agents_own_changes_are_followed() -> None:
    """A mode or config options that change on the agent's side are what is in force."""
    offers = _offers(_BOTH)
    offers.take_mode("plan")
    assert offers.current("agent") == "plan"
    offers.take_config(msgspec.json.decode('{"configOptions": []}', type=ConfigResult).config_options)
    assert offers.setting("model") is None
    offers.take_config(None)
    assert offers.current("agent") == "plan"


def test_models_are_followed_too() -> None:
    """The older way to tell models has a current one as well."""
    offers = _offers('{"models": {"currentModelId": "x", "availableModels": [{"modelId": "x"}, {"modelId": "y"}]}}')
    offers.take_model("y")
    assert offers.current("model") == "y"


@pytest.mark.parametrize(
    ("wanted", "value"),
    [("a", "a"), ("Model B", "b"), ("model b", "b"), ("same", None), ("d", "d"), ("nothing", None), ("", None)],
)
def test_a_word_means_a_value_or_an_unambiguous_name(wanted: str, value: str | None) -> None:
    """The value itself always; a name if only one choice has it."""
    model = _offers(_BOTH).setting("model")
    assert model is not None
    assert model.find(wanted) == value


def test_a_value_wins_over_another_ones_name() -> None:
    """A choice named like another one's value does not hide it."""
    setting = Setting(via="config", current=None, choices=[Choice(value="x", name="y"), Choice(value="y", name="z")])
    assert setting.find("y") == "y"


def test_a_long_list_of_offers_is_cut_in_messages() -> None:
    """Some agents know hundreds of models."""
    assert list_offers(["a", "b"]) == "a, b"
    assert list_offers([str(n) for n in range(25)]).endswith("18, 19 and 5 more")
