"""The graph of a manifest: order, what is ready, what depends on what, and the longest way through."""

from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from avenor.protocol.manifest.graph import Graph, graph_of
from avenor.protocol.manifest.model import Join, Manifest, Member
from tests.protocol.manifest_changes import seed


def make_member(name: str, *needs: str, seconds: float = 10, callable_by: tuple[str, ...] = ()) -> Member:
    return msgspec.convert(
        {
            "id": name,
            "role": "r",
            "model_profile": "p",
            "tools": [],
            "context_sources": [],
            "allowed_writes": [],
            "budget": {"model_calls": 1, "tool_calls": 1, "tokens": 1, "seconds": seconds},
            "depends_on": list(needs),
            "callable_by": list(callable_by),
        },
        Member,
    )


def make_join(name: str, *requires: str) -> Join:
    return Join(
        id=name,
        requires=list(requires),
        rule="all_required_results_with_matching_source_revision_and_plan_epoch",
        on_missing="needs_human",
        on_conflict="needs_human",
    )


SEED = graph_of(msgspec.convert(seed(), Manifest))


def test_the_seed_is_worked_off_in_its_order() -> None:
    """Both readers at once, the join when both are done."""
    assert SEED.order() == ["planner", "implementation_reader", "test_reader", "reader_join", "writer", "evaluator"]
    assert SEED.ready([]) == ["planner"]
    assert SEED.ready(["planner"]) == ["implementation_reader", "test_reader"]
    assert SEED.ready(["planner", "test_reader"]) == ["implementation_reader"]
    assert SEED.ready(["planner", "test_reader", "implementation_reader"]) == ["reader_join"]


def test_what_depends_on_what_is_followed_to_the_end() -> None:
    """Both ways; the owner of the evaluation needs all of them."""
    assert SEED.dependents("test_reader") == {"reader_join", "writer", "evaluator"}
    assert SEED.dependents("evaluator") == set()
    assert SEED.needed_by("writer") == {"reader_join", "implementation_reader", "test_reader", "planner"}
    assert SEED.required_for("evaluator") == set(SEED.nodes)
    assert SEED.required_for("planner") == {"planner"}
    assert SEED.required_for("nobody") == set()


def test_the_fan_out_of_the_seed_s_text_takes_24_seconds_instead_of_45() -> None:
    """12, 18 and 9 seconds at the same time, 6 after them."""
    members = [make_member(str(seconds), seconds=seconds) for seconds in (12, 18, 9)]
    graph = Graph([*members, make_member("judge", "join", seconds=6)], [make_join("join", "12", "18", "9")])
    assert graph.serial_seconds() == 45
    assert (graph.critical_path().seconds, graph.critical_path().nodes) == (24, ["18", "join", "judge"])


def test_an_empty_graph_has_no_way_through() -> None:
    """It takes no time."""
    assert Graph([], []).critical_path().nodes == []
    assert Graph([], []).find_cycle() is None


def test_a_cycle_is_found_behind_others() -> None:
    """And what waits for it is never ready."""
    graph = Graph([make_member("a"), make_member("b", "a", "d"), make_member("c", "b"), make_member("d", "c")], [])
    assert graph.find_cycle() == ["b", "c", "d", "b"]
    assert graph.order() == ["a"]


def test_one_that_waits_for_itself_is_a_cycle() -> None:
    """The shortest."""
    assert Graph([make_member("a", "a")], []).find_cycle() == ["a", "a"]


@given(st.lists(st.lists(st.integers(0, 7), max_size=4), min_size=1, max_size=8))
def test_either_all_can_be_done_or_there_is_a_cycle(needs: list[list[int]]) -> None:
    """Each after what it needs; in a cycle each needs the one before it."""
    graph = Graph([make_member(f"m{at}", *(f"m{need}" for need in each)) for at, each in enumerate(needs)], [])
    order, cycle = graph.order(), graph.find_cycle()
    assert (len(order) == len(needs)) is (cycle is None)
    for at, name in enumerate(order):
        assert set(graph.nodes[name].needs) <= set(order[:at])
    if cycle is not None:
        assert cycle[0] == cycle[-1]
        assert all(before in graph.nodes[after].needs for before, after in pairwise(cycle))
    else:
        path = graph.critical_path()
        assert path.seconds == 10 * len(path.nodes) <= graph.serial_seconds()
