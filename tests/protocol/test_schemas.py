"""The published schemas are those of the code."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from avenor.protocol.methods import AnswerParams, PromptParams
from avenor.protocol.schemas import METHODS, control_schema
from avenor.protocol.snapshot import Snapshot

DOCS = Path(__file__).parents[2] / "docs"


def check(schema: dict[str, Any], value: object) -> None:
    """Fails unless the value fits this part of the control schema."""
    jsonschema.validate(value, {**schema, "$defs": control_schema()["$defs"]})


def test_the_published_schema_is_up_to_date() -> None:
    """`python docs/generate.py` was run after the last change."""
    assert json.loads((DOCS / "reference" / "schemas" / "control.json").read_text()) == control_schema()


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
        check(control_schema()["event"], json.loads(line))
