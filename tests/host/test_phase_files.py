"""The loop or team of a run, from its files."""

import json
from pathlib import Path
from typing import Any

import pytest

from avenor.host.phase_files import load_phases
from avenor.protocol.configs import INITIAL, ResolvedTeam
from avenor.protocol.errors import ConfigError, InvalidParams
from avenor.protocol.spec import RunSpec


def spec_for(folder: Path, config: dict[str, Any], **changes: Any) -> RunSpec:
    """A run of this team."""
    path = folder / "team.json"
    path.write_text(json.dumps(config))
    chosen: dict[str, Any] = {"backend": "scripted", **changes}
    return RunSpec(team_file=str(path), dir=str(folder), **chosen)


def test_a_single_run_has_none(tmp_path: Path) -> None:
    """And nothing is read."""
    assert load_phases(RunSpec(prompt="go", dir=str(tmp_path)), "go") == (None, [])


def test_the_runs_own_prompt_is_a_literal_phase_before_all_others(tmp_path: Path) -> None:
    """Without one there is no such phase."""
    spec = spec_for(tmp_path, {"pre": [{"name": "p", "prompt": "x"}], "team": []})
    config, warnings = load_phases(spec, "use {{braces}}")
    assert isinstance(config, ResolvedTeam)
    assert [(each.name, each.is_literal) for each in config.pre] == [(INITIAL, True), ("p", False)]
    assert warnings == []
    bare, _ = load_phases(spec, "")
    assert bare is not None
    assert [each.name for each in bare.pre] == ["p"]


def test_what_is_wrong_names_the_field_and_every_mistake(tmp_path: Path) -> None:
    """For programs, as for people."""
    with pytest.raises(ConfigError) as refusal:
        load_phases(spec_for(tmp_path, {"team": [{"name": "a"}, {"name": "a", "prompt": ""}]}), "")
    assert refusal.value.data["field"] == "team_file"
    assert len(refusal.value.data["errors"]) == 3


@pytest.mark.parametrize(
    ("member", "changes", "field"),
    [
        ({"backend": "acp"}, {}, "agent_command"),
        ({}, {"agent_command": "x"}, "agent_command"),
        ({}, {"script": "/s", "backend": "opencode-acp"}, "script"),
    ],
)
def test_what_a_backend_needs_is_there_and_is_used(
    tmp_path: Path, member: dict[str, Any], changes: dict[str, Any], field: str
) -> None:
    """Somebody must use what is given, and what somebody uses must be given."""
    spec = spec_for(tmp_path, {"team": [{"name": "a", "prompt": "x", **member}]}, **changes)
    with pytest.raises(InvalidParams) as refusal:
        load_phases(spec, "")
    assert refusal.value.data["field"] == field


def test_a_member_of_a_nested_team_may_be_the_one_that_uses_it(tmp_path: Path) -> None:
    """However deep."""
    (tmp_path / "inner.json").write_text(json.dumps({"team": [{"name": "x", "prompt": "x", "backend": "acp"}]}))
    spec = spec_for(tmp_path, {"team": [{"name": "n", "team_file": "inner.json"}]}, agent_command="agent")
    config, _ = load_phases(spec, "")
    assert config is not None
