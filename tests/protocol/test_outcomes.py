"""Stop reasons, exit codes and sentinel text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avenor.protocol.outcomes import Outcome, Status, exit_code_for, parse_sentinel, render_sentinel


@pytest.mark.parametrize(
    ("stop_reason", "code"),
    [
        ("end_turn", 0),
        ("max_iterations", 0),
        ("refusal", 2),
        ("max_tokens", 3),
        ("max_turn_requests", 4),
        ("blocked", 5),
        ("budget_exhausted", 6),
        ("timeout", 124),
        ("progress_timeout", 124),
        ("cancelled", 130),
        ("zz", 1),
        ("error", 1),
        ("", 1),
    ],
)
def test_every_stop_reason_has_the_exit_code_of_the_contract(stop_reason: str, code: int) -> None:
    """Known reasons have their code, all others are failures."""
    assert code == exit_code_for(stop_reason)


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (
            Outcome.of("end_turn", run_id="r1", session_id="ses_1"),
            "DONE\nSESSION=ses_1\nSTOP_REASON=end_turn\nRUN=r1\n",
        ),
        (
            Outcome.of("blocked", run_id="r1", session_id="ses_1", reason="no database"),
            "BLOCKED\nSESSION=ses_1\nSTOP_REASON=blocked\nREASON=no database\nRUN=r1\n",
        ),
        (
            Outcome.of("blocked", run_id="r1", session_id="ses_1"),
            "BLOCKED\nSESSION=ses_1\nSTOP_REASON=blocked\nRUN=r1\n",
        ),
        (
            Outcome.of("progress_timeout", run_id="r1", session_id="ses_1"),
            "TIMEOUT\nSESSION=ses_1\nSTOP_REASON=progress_timeout\nRUN=r1\n",
        ),
        (
            Outcome.of("cancelled", run_id="r1"),
            "KILLED\nSESSION=\nSTOP_REASON=cancelled\nEXIT_CODE=130\nRUN=r1\n",
        ),
        (
            Outcome.of("zz", run_id="r1", session_id="s", reason="not shown"),
            "FAILED\nSESSION=s\nSTOP_REASON=zz\nEXIT_CODE=1\nRUN=r1\n",
        ),
        (
            Outcome.of("phase_failure", run_id="r1", session_id="s", exit_code=124),
            "FAILED\nSESSION=s\nSTOP_REASON=phase_failure\nEXIT_CODE=124\nRUN=r1\n",
        ),
    ],
)
def test_a_sentinel_has_exactly_the_lines_of_the_contract(outcome: Outcome, text: str) -> None:
    """Each status has its lines, in order, with RUN last; a phase's own 124 is a failure of the run."""
    assert text == render_sentinel(outcome)


@given(st.text(), st.text(), st.text())
def test_no_value_can_add_a_line(session: str, reason: str, run: str) -> None:
    """Control characters and line separators in a value become a space."""
    text = render_sentinel(Outcome.of("blocked", run_id=run, session_id=session, reason=reason))

    assert 4 + bool(reason) == len(text.splitlines())


@given(st.sampled_from(["end_turn", "blocked", "timeout", "cancelled", "refusal", "zz"]), st.from_regex(r"\A[ -~]*\Z"))
def test_parsing_a_sentinel_gives_the_outcome_back(stop_reason: str, session: str) -> None:
    """Rendered then parsed is the same outcome."""
    outcome = Outcome.of(stop_reason, run_id="r", session_id=session)

    assert outcome == parse_sentinel(render_sentinel(outcome))


@pytest.mark.parametrize("text", ["", "done\n", "DONE=\n", "\nDONE\n"])
def test_other_text_is_no_sentinel(text: str) -> None:
    """The first line must be a bare status."""
    with pytest.raises(ValueError, match="not a sentinel"):
        parse_sentinel(text)


def test_all_statuses_are_reachable() -> None:
    """Every status word is the outcome of some stop reason."""
    words = ("end_turn", "blocked", "timeout", "cancelled", "zz")

    assert set(Status) == {Outcome.of(word, run_id="r").status for word in words}
