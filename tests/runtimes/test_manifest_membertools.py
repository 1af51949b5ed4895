"""The parameters of avenor's own tools: schemas that agents can read, and mistakes that they can mend."""

from typing import Any

import jsonschema
import msgspec
import pytest

from avenor.protocol.manifest.roster import OWN_TOOLS
from avenor.runtimes.manifest.membertools import (
    MEMBER_TOOLS,
    BadArguments,
    CreateTask,
    ReadDiff,
    StartWorker,
    SubmitVerdict,
    decode_arguments,
    describe,
    input_schema,
)

FINDING = {
    "subject": "timeouts",
    "claim": "count as attempts",
    "finding": "They are counted.",
    "evidence": [{"source": "a.py"}],
}
EXAMPLES: dict[str, dict[str, Any]] = {
    "create_task": {"member": "reader", "contract": "trace the retries", "paths": ["src"]},
    "start_worker": {"member": "reader", "contract": "x", "budget": {"model_calls": 2, "seconds": 1.5}, "wait": False},
    "cancel_worker": {"task_id": "reader-2", "reason": "found already"},
    "replan": {"reason": "the schema changed"},
    "read_receipt": {"task_id": "reader"},
    "read_test_receipt": {"name": "focused_tests"},
    "read_diff": {"path": "src/retry.py"},
    "submit_result": {"source_revision": "git:r1", "plan_epoch": 7, "findings": [FINDING]},
    "submit_verdict": {"verdict": "repair", "revision": "abc", "failed_criterion": "focused_tests"},
    "hand_off": {"to": "recovery", "summary": "s", "reason": "r", "pending_effects": ["a migration"]},
    "accept_handoff": {},
    "reject_handoff": {"reason": "no authority"},
}


def nodes(schema: Any) -> list[dict[str, Any]]:
    """Every object in a schema."""
    if isinstance(schema, list):
        return [node for item in schema for node in nodes(item)]  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(schema, dict):
        return []
    return [schema, *(node for item in schema.values() for node in nodes(item))]  # pyright: ignore


def test_every_tool_that_a_manifest_can_name_is_described() -> None:
    """And no other."""
    assert set(MEMBER_TOOLS) == set(OWN_TOOLS)
    assert set(EXAMPLES) == set(MEMBER_TOOLS)


@pytest.mark.parametrize("name", MEMBER_TOOLS)
def test_a_tool_is_described_in_full_and_in_one_piece(name: str) -> None:
    """Each parameter has a description; nothing refers to elsewhere, which some agents do not follow."""
    described = describe(name)
    schema = described["inputSchema"]
    jsonschema.Draft202012Validator.check_schema(schema)
    assert (described["name"], schema["type"]) == (name, "object")
    assert len(described["description"]) > 20
    assert all(member["description"] for member in schema["properties"].values())
    assert not any("$ref" in node or "title" in node for node in nodes(schema))
    assert not any("\n" in str(node.get("description", "")) for node in nodes(schema))
    assert all(node["type"] == "string" for node in nodes(schema) if "enum" in node)


@pytest.mark.parametrize("name", MEMBER_TOOLS)
def test_what_fits_the_schema_is_taken_and_nothing_else(name: str) -> None:
    """The schema that agents see is the one that is enforced."""
    schema = input_schema(MEMBER_TOOLS[name])
    jsonschema.validate(EXAMPLES[name], schema)
    decoded = decode_arguments(name, msgspec.json.encode(EXAMPLES[name]))
    assert isinstance(decoded, MEMBER_TOOLS[name])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**EXAMPLES[name], "zz": 1}, schema)
    with pytest.raises(BadArguments, match="zz: unknown member"):
        decode_arguments(name, msgspec.json.encode({**EXAMPLES[name], "zz": 1}))


def test_arguments_decode_to_what_was_meant() -> None:
    """Left-out members have their defaults, and no arguments at all are an empty object."""
    assert decode_arguments("create_task", b'{"member":"a","contract":"b"}') == CreateTask(member="a", contract="b")
    assert decode_arguments("read_diff", b"") == ReadDiff()
    worker = decode_arguments("start_worker", b'{"member":"a","contract":"b","budget":{"tokens":5}}')
    assert isinstance(worker, StartWorker)
    assert worker.wait is True
    assert worker.budget is not msgspec.UNSET
    assert (worker.budget.tokens, worker.budget.seconds) == (5, msgspec.UNSET)
    verdict = decode_arguments("submit_verdict", b'{"verdict":"accept","revision":"r2"}')
    assert isinstance(verdict, SubmitVerdict)
    assert verdict.verdict == "accept"


@pytest.mark.parametrize(
    ("name", "arguments", "lines"),
    [
        (
            "start_worker",
            b'{"member":1,"budget":{"tokens":-1},"paths":["a",""]}',
            [
                "- member: Expected `str`, got `int`; given: 1; expected: Whose role, tools and model the worker has",
                "- budget.tokens: Expected `int` >= 0; given: -1; expected: Left out: as much as",
                '- paths[1]: Expected `str` of length >= 1; given: ""; expected: Files and folders',
                "- the arguments: member 'contract' is missing",
            ],
        ),
        ("replan", b'{"reason":"x","a.b":1}', ["a.b: unknown member", "given: nothing"]),
        ("replan", b"[1]", ["- the arguments: Expected `object`, got `array`"]),
        ("replan", b"{oops", ["replan: the arguments are no JSON object"]),
        ("replan", b'{"x":' * 5000, ["replan: the arguments are no JSON object"]),
        (
            "submit_verdict",
            b'{"verdict":"repair","revision":"r2"}',
            ["submit_verdict: failed_criterion: a repair has to name the criterion"],
        ),
        (
            "submit_verdict",
            b'{"verdict":"approve","revision":"r2"}',
            ['given: "approve"; expected: accept, repair (names the failed criterion), reject or needs_human'],
        ),
        ("submit_result", b'{"source_revision":"r1","plan_epoch":7,"findings":[]}', ["findings: ", "given: []"]),
        ("cancel_worker", b'{"task_id":"' + b"x" * 300 + b'","reason":"r"}', ["…; expected: The task's id"]),
        (
            "submit_result",
            b'{"source_revision":"r1","plan_epoch":7,"findings":[{"evidence":3}]}',
            ["findings[0].evidence: "],
        ),
    ],
)
def test_a_mistake_is_told_with_its_field_its_value_and_the_remedy(
    name: str, arguments: bytes, lines: list[str]
) -> None:
    """All mistakes at once, so that one more call mends them."""
    with pytest.raises(BadArguments) as caught:
        decode_arguments(name, arguments)
    for line in lines:
        assert line in str(caught.value)


def test_a_tool_that_does_not_exist_is_a_fault_of_the_caller() -> None:
    """Names are checked before."""
    with pytest.raises(KeyError):
        decode_arguments("dance", b"{}")
    with pytest.raises(KeyError):
        describe("dance")
