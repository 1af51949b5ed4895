"""Real opencode with a model that fails, in every way that a model service does."""

from collections.abc import Generator
from pathlib import Path

import pytest

from avenor.protocol.events import Retry, RunEnd, SessionStart, TurnEnd, TurnStart
from avenor.protocol.outcomes import Status
from tests.agents.harness import Home, Run, Runtime, ended
from tests.agents.standin_model import StandInModel
from tests.helpers import eventually_sync

pytestmark = pytest.mark.agents


@pytest.fixture(scope="module", autouse=True)
def given_up(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Generator[Run, None, None]:
    """A run whose model never answers but with 500, begun before the other tests: it has to be waited for."""
    # Long enough for a slow machine to have sent its first request.
    limits = ("--progress-timeout", "12s", "--max-retries", "2")
    run = Run(home, tmp_path_factory.mktemp("given-up"), *limits, "--prompt", "[[error: 500]] a lasting fault")
    with ended(run):
        yield run


def assert_failed(runtime: Runtime, words: str) -> None:
    """Status, sentinel and the log's last event agree that it failed, and why."""
    end = runtime.wait(RunEnd)
    assert (end.status, end.exit_code) == ("FAILED", 1)
    assert words in str(end.reason)
    snapshot = runtime.snapshot()
    assert (snapshot.status, snapshot.outcome, snapshot.exit_code) == ("ended", "FAILED", 1)
    # The log's last event is told before the sentinel is written.
    eventually_sync(lambda: Path(str(snapshot.sentinel_file)).exists())
    assert runtime.sentinel().status is Status.FAILED
    assert runtime.processes() == []


def test_a_refused_request_fails_the_run_in_the_models_words(fresh: Runtime, model: StandInModel) -> None:
    """A 400 would come again: no retry, and the error's text is in the turn's end and the run's."""
    end = fresh.turn("[[error: 400]] a bad request")
    assert "stand-in error 400" in str(end.error)
    assert_failed(fresh, "stand-in error 400")
    assert fresh.events(Retry) == []
    assert len(model.asked("a bad request")) == 1


def test_a_rate_limit_that_passes_is_waited_for(shared: Runtime, model: StandInModel) -> None:
    """Two answers of 429 with Retry-After are opencode's own to sit out; the turn ends well."""
    end = shared.turn("[[error: 429 x2 after 1]][[text: through at last]] not so fast")
    assert (end.stop_reason, end.final_output) == ("end_turn", "through at last")
    assert len(model.asked("not so fast")) == 3


def test_an_answer_that_breaks_off_is_asked_for_again(shared: Runtime, model: StandInModel) -> None:
    """A dropped connection is retried by opencode; what was told of the first try stays in the log."""
    end = shared.turn("[[drop: 1]][[text: whole]] a weak line")
    assert end.stop_reason == "end_turn"
    assert end.final_output is not None
    assert str(end.final_output).endswith("whole")
    assert len(model.asked("a weak line")) == 2


def test_an_answer_that_is_no_json_fails_the_run(fresh: Runtime) -> None:
    """Garbage from the model ends the turn with an error; one more try, as was asked for, and the run fails."""
    end = fresh.turn("[[garbage]] what is this")
    assert end.error
    assert_failed(fresh, str(end.error)[:40])


def test_a_model_that_never_recovers_is_given_up(given_up: Run, model: StandInModel) -> None:
    """opencode says nothing while it retries a 500 for ever: the progress timeout ends the run, without a retry."""
    assert given_up.finish() == (124, "")
    outcome = given_up.sentinel()
    assert (outcome.status, outcome.exit_code, outcome.stop_reason) == (Status.TIMEOUT, 124, "progress_timeout")
    assert [event.stop_reason for event in given_up.events(TurnEnd)] == ["progress_timeout"]
    assert len(given_up.events(TurnStart)) == len(given_up.events(SessionStart)) == 1
    assert len(model.asked("a lasting fault")) >= 2
    assert given_up.processes() == []
