"""What makes a run on real agents a failure though none of its tests has failed."""

from collections.abc import Collection, Iterable, Mapping, Sequence


def problems(
    agents: Sequence[str],
    opened: Mapping[str, int],
    *,
    selected: Iterable[tuple[str, str]],
    done: Collection[tuple[str, str]],
    left: Sequence[str],
    silent_skips: Sequence[str],
) -> list[str]:
    """What is wrong, a line each.

    Args:
        agents: Those that were asked for.
        opened: How many sessions each has opened.
        selected: Agents and checks of the suite that were to be run.
        done: Those that have a result.
        left: Agents of which something ran when all was over.
        silent_skips: Tests that were skipped without a reason.
    """
    return [
        *(f"{agent} opened no session" for agent in agents if not opened.get(agent)),
        *(f"{agent} has no result of {check}" for agent, check in selected if (agent, check) not in done),
        *(f"{agent} left processes" for agent in left),
        *(f"{test} was skipped, and nobody said why" for test in silent_skips),
    ]


def is_silent(skip: str) -> bool:
    """Whether what pytest says of a skipped test has no reason of ours in it."""
    return skip.removeprefix("Skipped").lstrip(": ") in ("", "unconditional skip")
