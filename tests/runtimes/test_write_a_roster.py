"""The examples of docs/how-to/write-a-roster.md are a roster that loads, and a backend that starts codex as it says."""

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from avenor.protocol.manifest.roster import Roster
from avenor.runtimes.backends.profiles import Profile
from avenor.runtimes.manifest.dialects import find_route

PAGE = (Path(__file__).parents[2] / "docs/how-to/write-a-roster.md").read_text()


def example(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def roster() -> Roster:
    return msgspec.convert(yaml.safe_load(example("yaml")), Roster)


@pytest.mark.parametrize("name", ["coding-medium", "analysis-small", "evaluation-medium", "rehearsed"])
def test_every_profile_of_the_page_sends_its_agent_to_the_gateway(name: str) -> None:
    """Address and token stand in its environment, in a form that survives being filled in."""
    profile = roster().profiles[name]
    assert profile.endpoint is not None
    given = " ".join(profile.env.values())
    assert "{gateway_url}" in given
    assert "{gateway_token}" in given


def test_the_configuration_of_opencode_is_json_that_uses_what_is_filled_in() -> None:
    """And its title agent, which would make a call of its own, is off."""
    text = roster().profiles["coding-medium"].env["OPENCODE_CONFIG_CONTENT"]
    config: Any = json.loads(text.replace("{gateway_url}", "http://h/model").replace("{gateway_token}", "t"))
    assert config["provider"]["gateway"]["options"] == {"baseURL": "http://h/model", "apiKey": "t"}
    assert config["agent"]["title"]["disable"] is True


def test_the_backend_file_of_the_page_gives_codex_the_gateway() -> None:
    """As its command line takes it: TOML values, in words that a shell has quoted."""
    profile = msgspec.convert({**tomllib.loads(example("toml")), "name": "codex-gateway"}, Profile)
    shell, flag, line = profile.argv
    words = shlex.split(line.replace("\\\n", " ").replace("$GATEWAY_URL", "http://h/model"))
    assert (shell, flag, words[:3]) == ("sh", "-c", ["exec", "codex", "app-server"])
    settings = tomllib.loads("\n".join(words[place + 1] for place, word in enumerate(words) if word == "-c"))
    provider = {"name": "gateway", "base_url": "http://h/model", "env_key": "GATEWAY_TOKEN", "wire_api": "responses"}
    assert settings == {"model_provider": "gateway", "model_providers": {"gateway": provider}}


def test_the_table_of_the_page_is_what_passes() -> None:
    """Paths that are counted, and paths that are not."""
    rows = re.findall(r"^\| `(openai|anthropic)` \| (.*?) \| (.*?) \|$", PAGE, re.MULTILINE)
    assert [row[0] for row in rows] == ["openai", "anthropic"]
    for dialect, counted, free in rows:
        for is_call, cell in ((True, counted), (False, free)):
            for path in re.findall(r"`([^`]+)`", cell):
                method = "GET" if path == "models" else "POST"
                route = find_route(dialect, method, f"/v1/{path}")
                assert route is not None, path
                assert route.is_call is is_call
