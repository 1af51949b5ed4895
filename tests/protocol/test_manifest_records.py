"""Typed results: read from a tool call or from a fenced block, and never empty."""

import msgspec
import pytest

from avenor.protocol.manifest.records import (
    Finding,
    NoResult,
    Result,
    Verdict,
    fenced_block,
    key_of,
    read_result,
    read_verdict,
    unresolved_questions,
)

FINDING = Finding(subject="retry limit", claim="timeouts count", finding="They do, in line 12.")
RESULT = Result(source_revision="git:r1", plan_epoch=7, findings=[FINDING])


def test_a_result_is_read_as_it_was_written() -> None:
    """Encode, then decode, is identity."""
    assert read_result(msgspec.json.encode(RESULT)) == RESULT


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b"", "no result"),
        (b"\xff", "no result"),
        (b"[" * 100_000, "no result"),
        (b'{"plan_epoch": 7}', "source_revision"),
        (b'{"source_revision": "r1", "plan_epoch": 7, "findings": []}', "findings"),
        (b'{"source_revision": "r1", "plan_epoch": -1, "findings": [{}]}', "plan_epoch"),
        (b'{"source_revision": "r1", "plan_epoch": 7, "findings": [{"subject": ""}]}', "subject"),
        (b'{"source_revision": "r1", "plan_epoch": 7, "mood": 1}', "mood"),
    ],
)
def test_what_is_no_result_is_refused_by_field(text: bytes, named: str) -> None:
    """The agent is told what to mend; an empty result is none."""
    with pytest.raises(NoResult, match=named):
        read_result(text)


@pytest.mark.parametrize("fence", ["```", "~~~~", "  ```"])
def test_the_last_fenced_block_of_a_message_counts(fence: str) -> None:
    """An agent may show an example before."""
    shown = f"{fence}avenor-result\n{{}}\n{fence}\n"
    text = f'First:\n{shown}then\n{fence} json avenor-result\r\n{{"a": 1}}\r\n{fence}\r\nDone.'

    assert fenced_block(text) == b'{"a": 1}\r\n'


@pytest.mark.parametrize("text", ["", "```json\n{}\n```", "```avenor-result\n{}", "say ```avenor-result\n{}\n```"])
def test_a_message_without_a_whole_block_has_no_result(text: str) -> None:
    """Nothing is guessed."""
    assert fenced_block(text) is None


def test_a_repair_has_to_name_what_failed() -> None:
    """A request without a criterion is none."""
    with pytest.raises(NoResult, match="failed_criterion"):
        read_verdict(b'{"verdict": "repair", "revision": "r2", "failed_criterion": " "}')

    verdict = read_verdict(b'{"verdict": "repair", "revision": "r2", "failed_criterion": "focused_tests"}')
    assert verdict == Verdict(verdict="repair", revision="r2", failed_criterion="focused_tests")


@pytest.mark.parametrize("text", [b'{"verdict": "fine", "revision": "r2"}', b'{"verdict": "accept"}', b"\xff"])
def test_what_is_no_verdict_is_refused(text: bytes) -> None:
    """Only the four words, and always with the revision."""
    with pytest.raises(NoResult, match="no verdict"):
        read_verdict(text)


def test_subjects_are_compared_without_case_and_blanks() -> None:
    """Two agents do not write alike."""
    assert key_of("Retry  Limit\n") == key_of("retry limit")
    assert key_of("retry limit") != key_of("retry-limit")


def test_open_questions_are_listed_once() -> None:
    """Whoever asked first."""
    asked = [
        msgspec.structs.replace(FINDING, unresolved_question=question) for question in ("Why?", "", "Why?", "How?")
    ]
    result = msgspec.structs.replace(RESULT, findings=asked)

    assert unresolved_questions([result, result]) == ["Why?", "How?"]
