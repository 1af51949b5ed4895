"""Checks what we send to codex against its own schemas, of which `codex-schema.json` has what is needed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jsonschema

_SCHEMAS: Final[dict[str, Any]] = json.loads((Path(__file__).parent.parent / "data" / "codex-schema.json").read_text())

Message = Mapping[str, Any]


def check_call(message: Message) -> None:
    """One call or notification of ours: valid, and without a member that codex would not know."""
    method, params = message["method"], message["params"]
    if method == "initialized":
        assert "id" not in message
        assert params == {}
        return
    assert "id" in message
    _check(_SCHEMAS["calls"][method], params)


def check_question(method: str, params: Any) -> None:
    """A question as codex may ask it; for tests that make one up."""
    _check(_SCHEMAS["questions"][method], params, is_strict=False)


def check_answer(method: str, result: Any) -> None:
    """One answer of ours to a question of codex."""
    _check(_SCHEMAS["answers"][method], result)


def _check(schema: dict[str, Any], value: Any, *, is_strict: bool = True) -> None:
    jsonschema.validate(value, {**schema, "definitions": _SCHEMAS["definitions"]}, jsonschema.Draft7Validator)
    if is_strict:
        assert set(value) <= set(schema["properties"])
