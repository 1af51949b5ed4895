"""The manifest of a run is read from its files before there is a run."""

from pathlib import Path

import pytest

from avenor.host.backend_names import BackendNames
from avenor.host.config_files import load_config_of
from avenor.protocol.errors import ConfigError
from avenor.protocol.manifest.binding import ResolvedManifest
from avenor.protocol.spec import RunSpec

DATA = Path(__file__).parents[1] / "data" / "manifests"


def spec(folder: Path = DATA) -> RunSpec:
    return RunSpec(manifest=str(folder / "seed.yaml"), roster=str(DATA / "roster-scripted.yaml"), dir=str(folder))


def test_the_manifest_of_a_spec_is_loaded_with_its_roster(tmp_path: Path) -> None:
    """With the names of the user's backends, where there are any."""
    config, warnings = load_config_of(spec(), "")
    assert isinstance(config, ResolvedManifest)
    assert (config.team_id, config.roster_file, warnings) == ("retry-fix", str(DATA / "roster-scripted.yaml"), [])
    assert load_config_of(spec(), "", backends=BackendNames(str(tmp_path))) == (config, [])


def test_without_one_it_is_what_the_run_has_else(tmp_path: Path) -> None:
    """A loop, a team or nothing."""
    assert load_config_of(RunSpec(prompt="go", dir=str(tmp_path)), "go") == (None, [])


def test_a_manifest_that_cannot_be_used_names_the_field_of_the_spec(tmp_path: Path) -> None:
    """With all mistakes for programs."""
    (tmp_path / "seed.yaml").write_text("schema_version: team.v1\nteam_id: 7\n")
    with pytest.raises(ConfigError) as caught:
        load_config_of(spec(tmp_path), "")
    assert caught.value.data["field"] == "manifest"
    assert {"$.team_id", "$"} == {each["path"] for each in caught.value.data["errors"]}
