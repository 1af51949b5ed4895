"""The published schemas are those of the code."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from avenor.protocol.configs import ConfigKind
from avenor.protocol.methods import AnswerParams, PromptParams
from avenor.protocol.schemas import (
    METHODS,
    control_schema,
    doctor_schema,
    loop_schema,
    manifest_schema,
    roster_schema,
    team_schema,
)
from avenor.protocol.snapshot import Snapshot
from tests.protocol.config_folder import errors, loop, phase, team

DOCS = Path(__file__).parents[2] / "docs"
CONTROL = control_schema()


def check(schema: dict[str, Any], value: object) -> None:
    """Fails unless the value fits this part of the control schema."""
    validator: Any = jsonschema.Draft202012Validator({**schema, "$defs": CONTROL["$defs"]})
    validator.validate(value)


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        ("control.json", control_schema()),
        ("doctor.schema.json", doctor_schema()),
        ("loop.schema.json", loop_schema()),
        ("manifest.schema.json", manifest_schema()),
        ("roster.schema.json", roster_schema()),
        ("team.schema.json", team_schema()),
    ],
)
def test_the_published_schemas_are_up_to_date(name: str, schema: dict[str, Any]) -> None:
    """`python docs/generate.py` was run after the last change."""
    assert json.loads((DOCS / "reference" / "schemas" / name).read_text()) == schema


def test_every_method_has_a_schema_for_params_and_result() -> None:
    """Names of methods are the contract's."""
    assert set(control_schema()["methods"]) == set(METHODS)
    for pair in control_schema()["methods"].values():
        jsonschema.Draft202012Validator.check_schema(pair["params"])
        jsonschema.Draft202012Validator.check_schema(pair["result"])


@pytest.mark.parametrize(
    ("method", "value"),
    [
        ("prompt", PromptParams(text="go")),
        ("answer_permission", AnswerParams(request_id="p", option_id="o")),
    ],
)
def test_params_that_the_code_sends_fit_their_schema(method: str, value: msgspec.Struct) -> None:
    """What we encode is what we publish."""
    check(control_schema()["methods"][method]["params"], msgspec.to_builtins(value))


def test_a_snapshot_fits_its_schema() -> None:
    """With all its nulls."""
    check(control_schema()["methods"]["status"]["result"], msgspec.to_builtins(Snapshot()))


def test_golden_events_fit_the_event_schema() -> None:
    """Every event of the golden file."""
    for line in (DOCS.parent / "tests" / "data" / "events.ndjson").read_text().splitlines():
        check(CONTROL["event"], json.loads(line))


CONFIG_SCHEMAS: dict[ConfigKind, dict[str, Any]] = {"loop": loop_schema(), "team": team_schema()}


@pytest.mark.parametrize("kind", ["loop", "team"])
def test_the_schemas_of_configs_are_schemas(kind: ConfigKind) -> None:
    """Of the dialect that they name."""
    assert CONFIG_SCHEMAS[kind]["$schema"] == jsonschema.Draft202012Validator.META_SCHEMA["$id"]
    jsonschema.Draft202012Validator.check_schema(CONFIG_SCHEMAS[kind])


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("loop", loop()),
        ("loop", loop(max_iterations=1, pre=[phase("p")], post=[])),
        ("loop", loop(max_iterations=0)),
        ("loop", loop(max_iterations=1.5)),
        ("loop", {"pre": [phase()]}),
        ("loop", team()),
        ("team", team()),
        ("team", team(**{"$schema": "team.schema.json"})),
        ("team", team(max_iterations=3)),
        ("team", loop()),
        ("team", {}),
        ("team", {"pre": [], "team": [], "post": [phase()]}),
        ("team", {"pre": [phase()], "team": [phase("b", conditional=True, agent="a", model="m", backend="acp")]}),
        ("team", {"team": [{"prompt": "go"}]}),
        ("team", {"team": [{"name": "a"}]}),
        ("team", {"team": [{"name": "a", "prompt": None}]}),
        ("team", {"team": [phase(prompt="go", loop_file=None)]}),
        ("team", {"team": [phase(prompt="go", loop_file="l.json")]}),
        ("team", {"team": [phase(" ")]}),
        ("team", {"team": [phase(prompt="\n")]}),
        ("team", {"team": [phase(extra=1)]}),
        ("team", {"team": [phase(conditional=1)]}),
        ("team", {"team": "x"}),
        ("team", []),
    ],
)
def test_a_config_fits_its_schema_exactly_if_it_can_be_loaded(kind: ConfigKind, content: Any) -> None:
    """For all that concerns one phase or list alone."""
    if errors(content, kind):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(content, CONFIG_SCHEMAS[kind])
    else:
        jsonschema.validate(content, CONFIG_SCHEMAS[kind])
