"""Each rule of a manifest and its roster, broken once: what is told, and where."""

from typing import Any

import pytest

from tests.protocol.manifest_changes import (
    EVALUATOR,
    PLANNER,
    READER,
    TEST_READER,
    WRITER,
    check,
    errors,
    extra_member,
    member,
    roster,
    seed,
)


def warnings(manifest: Any = None, names: Any = None) -> list[str]:
    return [f"{found.path.removeprefix('$.')}: {found.message}" for found in check(manifest, names).warnings]


def notes(manifest: Any = None, names: Any = None) -> list[str]:
    return [f"{found.path.removeprefix('$.')}: {found.message}" for found in check(manifest, names).notes]


def with_part(part: str, **changes: Any) -> dict[str, Any]:
    manifest = seed()
    manifest[part].update(changes)
    return manifest


def with_roster(part: str, name: str, value: Any) -> dict[str, Any]:
    names = roster()
    names.setdefault(part, {})[name] = value
    return names


# --- ids and references -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["planner", "PLANNER", "reader_join"])
def test_members_and_joins_share_one_name_space(name: str) -> None:
    """Ids become folders and git refs, where case may not count."""
    found = errors(extra_member(name))
    assert any(line.startswith(("members[5].id: ", "joins[0].id: ")) for line in found)
    assert any(f"is taken by {'members[5].id' if name == 'reader_join' else 'members[0].id'}" in line for line in found)


@pytest.mark.parametrize("name", ["run", "lost", "Candidate"])
def test_some_ids_are_reserved(name: str) -> None:
    """The ledger's root, and what avenor calls its branches."""
    assert errors(extra_member(name)) == [f"members[5].id: {name!r} is reserved: choose another id"]


def test_an_id_may_not_be_that_of_an_extra_task() -> None:
    """Those are named after the member that does them."""
    assert errors(extra_member("test_reader-2")) == [
        "members[5].id: 'test_reader-2' is what an extra task of test_reader would be called: choose another id"
    ]
    assert errors(extra_member("other-2")) == []


@pytest.mark.parametrize("name", ["", "a b", "a.b", "-a", "a/b", "x" * 65])
def test_an_id_is_fit_for_file_names_and_refs(name: str) -> None:
    """Of letters, digits, `_` and `-`."""
    assert errors(extra_member(name))[0].startswith("members[5].id: Expected `str`")


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (member(READER, depends_on=["nobody"]), "members[1].depends_on[0]: there is no member or join 'nobody'"),
        (
            member(READER, depends_on=["planner", "planner"]),
            "members[1].depends_on[0]: 'planner' is named more than once",
        ),
        (with_part("evaluation", owner="reader_join"), "evaluation.owner: there is no member 'reader_join'"),
        (extra_member(callable_by=["nobody"]), "members[5].callable_by[0]: there is no member 'nobody'"),
    ],
)
def test_what_is_named_is_there(manifest: Any, message: str) -> None:
    """Dependencies, owner and callers; joins and hand-offs below."""
    assert any(line.startswith(message) for line in errors(manifest))


def test_a_join_requires_members() -> None:
    """Not joins, not nobody."""
    manifest = seed()
    manifest["joins"][0]["requires"] = ["test_reader", "nobody", "reader_join"]
    found = errors(manifest)
    assert any(line.startswith("joins[0].requires[1]: there is no member 'nobody'") for line in found)
    assert any(line.startswith("joins[0].requires[2]: there is no member 'reader_join'") for line in found)


def test_a_cycle_is_shown_as_a_chain() -> None:
    """Through a join."""
    chain = "planner → implementation_reader → reader_join → writer → evaluator → planner"
    assert f"members: these wait for each other: {chain}" in errors(member(PLANNER, depends_on=["evaluator"]))


# --- members that others call -----------------------------------------------------------------------------------------

CALLER = {"tools": ["create_task", "start_worker", "cancel_worker", "read_receipt"]}


def called(**changes: Any) -> dict[str, Any]:
    return extra_member("specialist", **{"callable_by": ["planner"], **changes})


def test_a_member_that_others_call_is_paid_by_them_and_not_scheduled() -> None:
    """So its budget is not in the sum, nor its seconds in the path."""
    price = check(called()).price
    assert price is not None
    assert price.critical_path[0] == "planner"
    assert [row.reserved for row in price.budget][:3] == [15, 38, 100000]
    assert (price.nodes[-1].id, price.nodes[-1].callable_by, price.serial_seconds) == ("specialist", ["planner"], 480)
    assert errors(called()) == []


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (called(depends_on=["planner"]), "members[5].depends_on: a member that others call waits for nothing else"),
        (called(callable_by=["writer"]), "members[5].callable_by[0]: 'writer' cannot call anybody: it needs"),
        (
            called(budget={"model_calls": 4, "tool_calls": 1, "tokens": 1, "seconds": 20}),
            "members[5].callable_by[0]: its model_calls (4) come out of those of 'planner', which has only 3",
        ),
        (
            called(budget={"model_calls": 1, "tool_calls": 1, "tokens": 1, "seconds": 61}),
            "members[5].callable_by[0]: its seconds (61) come out of those of 'planner', which has only 60",
        ),
        (called(tools=["start_worker"], callable_by=["specialist"]), "members[5].callable_by: calls go at most 2 deep"),
    ],
)
def test_calls_keep_their_rules(manifest: Any, message: str) -> None:
    """What is called waits for nobody, and takes no more than its caller has."""
    assert any(line.startswith(message) for line in errors(manifest))


def test_calls_go_at_most_two_deep() -> None:
    """The third is refused with the whole chain."""
    manifest = called(tools=["start_worker"])
    base = manifest["members"][5]
    manifest["members"] += [
        {**base, "id": "second", "callable_by": ["specialist"]},
        {**base, "id": "third", "callable_by": ["second"]},
    ]
    found = errors(manifest)
    assert found == [
        "members[7].callable_by: calls go at most 2 deep, and not in a circle: planner → specialist → second → third"
    ]


def test_nobody_waits_for_a_member_that_others_call() -> None:
    """It has no place in the plan."""
    manifest = called()
    manifest["members"][READER]["depends_on"] = ["specialist"]
    assert errors(manifest) == [
        "members[1].depends_on[0]: 'specialist' is called by others (callable_by) and has no place in the plan"
    ]


def test_a_caller_that_cannot_call_all_and_go_on_is_warned_of() -> None:
    """Its own calls are what they use."""
    manifest = called(budget={"model_calls": 3, "tool_calls": 1, "tokens": 1000, "seconds": 20})
    assert [line.partition(":")[0] for line in warnings(manifest)] == ["members[0].budget.model_calls"]


# --- who may do what --------------------------------------------------------------------------------------------------


def test_the_owner_of_the_evaluation_may_write_nothing() -> None:
    """Neither a target nor a tool that writes."""
    manifest = member(EVALUATOR, allowed_writes=["candidate_branch:new"], tools=["apply_patch"])
    found = errors(manifest, with_roster("writes", "candidate_branch:new", ["new.py"]))
    assert found == [
        "members[4].tools[0]: apply_patch writes: whoever judges the candidate must not change it",
        "members[4].allowed_writes: whoever judges the candidate must not change it: leave it empty",
    ]


def test_a_verdict_is_the_owner_s() -> None:
    """Nobody else declares that tool."""
    found = errors(member(WRITER, tools=["apply_patch", "submit_verdict"]))
    assert found == ["members[3].tools: submit_verdict is for the owner of the evaluation, 'evaluator'"]


@pytest.mark.parametrize("needs", [[], ["evaluator"]])
def test_nobody_writes_beside_the_evaluation_or_after_it(needs: list[str]) -> None:
    """What was judged would not be what is there."""
    manifest = extra_member(tools=["apply_patch"], allowed_writes=["candidate_branch:new"], depends_on=needs)
    assert errors(manifest, with_roster("writes", "candidate_branch:new", ["new.py"])) == [
        "members[5].allowed_writes: 'evaluator' does not wait for it: nobody would judge what it writes"
    ]


def test_a_write_target_has_one_writer() -> None:
    """By its name."""
    manifest = member(TEST_READER, tools=["apply_patch"], allowed_writes=["candidate_branch:retry_tests"])
    assert errors(manifest) == [
        "members[3].allowed_writes[1]: 'candidate_branch:retry_tests' is written by 'test_reader' already: "
        "each write path has one writer"
    ]


@pytest.mark.parametrize(
    ("glob", "overlaps"),
    [
        ("src/retry.py", True),
        ("src/", True),
        ("**/retry.py", True),
        ("src/r*", True),
        ("tests/test_[a-z]*.py", True),
        ("src/other.py", False),
        ("src/*/retry.py", True),  # what is called so may be a folder
        ("src/*/r.py", True),
        ("lib/*/retry.py", False),
        ("docs/**", False),
    ],
)
def test_a_write_path_has_one_writer_whatever_its_targets_are_called(glob: str, overlaps: bool) -> None:
    """The globs of the roster are compared."""
    manifest = member(TEST_READER, tools=["apply_patch"], allowed_writes=["elsewhere"])
    found = errors(manifest, with_roster("writes", "elsewhere", [glob]))
    assert bool(found) is overlaps
    assert all("each write path has one writer" in line and "'test_reader' writes" in line for line in found)


def test_one_member_may_have_targets_that_overlap() -> None:
    """It is one writer."""
    names = roster()
    names["writes"]["candidate_branch:retry_tests"] = ["src/**"]
    assert errors(None, names) == []


def test_whoever_may_write_has_a_tool_for_it() -> None:
    """Of kind edit, delete or move."""
    assert errors(member(WRITER, tools=["read_file", "run_focused_test"])) == [
        "members[3].tools: it may write, and has no tool of kind edit, delete or move: declare one"
    ]


def test_a_tool_that_writes_without_a_target_is_warned_of() -> None:
    """Every use of it will be refused."""
    assert warnings(member(READER, tools=["apply_patch"])) == [
        "members[1].tools[0]: apply_patch writes, and it may write nothing: every use will be refused"
    ]


@pytest.mark.parametrize("key", ["tools", "context_sources", "allowed_writes"])
def test_nothing_is_named_twice(key: str) -> None:
    """The second one is what is wrong."""
    manifest = seed()
    names = manifest["members"][WRITER][key]
    names.append(names[0])
    assert errors(manifest) == [f"members[3].{key}[{len(names) - 1}]: {names[0]!r} is there more than once"]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "model_profile",
            "best",
            "model_profile: neither the roster nor avenor has a profile 'best'; there are reasoning",
        ),
        (
            "tools",
            ["hammer"],
            "tools[0]: neither the roster nor avenor has a tool 'hammer'; there are run_focused_test",
        ),
        ("context_sources", ["rumours"], "context_sources[0]: neither the roster nor avenor has a context source 'rum"),
        ("allowed_writes", ["main"], "allowed_writes[0]: neither the roster nor avenor has a write target 'main'"),
    ],
)
def test_a_name_that_means_nothing_is_refused_with_those_that_do(key: str, value: Any, message: str) -> None:
    """Profiles, tools, context sources and write targets."""
    found = errors(member(PLANNER, **{key: value}))
    assert any(line.startswith(f"members[0].{message}") for line in found)


# --- agents that do not ask -------------------------------------------------------------------------------------------


def on_backend(**profile: Any) -> dict[str, Any]:
    return with_roster("profiles", "reasoning-medium", {"backend": "acp", "agent_command": "agent", **profile})


def test_an_agent_that_may_not_ask_fills_no_member() -> None:
    """Unless its profile states that its own configuration holds it."""
    [found] = errors(None, on_backend())
    assert found.startswith("members[0].model_profile: authority: acp, set up so, is not known to ask before it uses")
    assert "execute, fetch" in found
    assert "'planner'" in found
    assert errors(None, on_backend(enforces_tools=["fetch"])) != []
    assert errors(None, on_backend(enforces_tools=["fetch", "execute"])) == []


def test_without_a_sandbox_it_has_to_ask_before_it_writes_as_well() -> None:
    """Nothing else would hold it back in time."""
    names = on_backend(enforces_tools=["fetch", "execute"])
    [found] = errors(None, names, unsandboxed=True)
    assert "delete, edit, move" in found
    assert (
        errors(None, on_backend(enforces_tools=["fetch", "execute", "edit", "delete", "move"]), unsandboxed=True) == []
    )


def test_in_another_mode_it_is_not_known_to_ask() -> None:
    """What is known of a backend is known of how it comes."""
    names = roster()
    names["profiles"]["reasoning-medium"]["agent"] = "yolo"
    assert len(errors(None, names)) == 1


def test_that_it_may_read_what_it_was_not_granted_is_noted() -> None:
    """It is recorded, not refused."""
    [found] = notes(None, on_backend(enforces_tools=["fetch", "execute"]))
    assert found.startswith("members[0].tools: acp does not ask before it uses tools of kind read, search")
    assert notes() == []


# --- hand-offs --------------------------------------------------------------------------------------------------------


def handed(**changes: Any) -> dict[str, Any]:
    manifest = extra_member(
        "controller",
        tools=["accept_handoff", "reject_handoff"],
        context_sources=["handoff_record"],
    )
    manifest["members"][PLANNER]["tools"].append("hand_off")
    manifest["members"][READER]["depends_on"] = ["controller"]
    manifest["handoffs"] = [{"from": "planner", "to": "controller", "on_reject": "return", **changes}]
    return manifest


def test_a_hand_off_is_part_of_the_longest_way() -> None:
    """Its receiver starts when its sender offers it."""
    checked = check(handed())
    assert checked.errors == []
    assert checked.price is not None
    assert checked.price.critical_path[:3] == ["planner", "controller", "implementation_reader"]
    assert checked.price.ideal_seconds == 410


def test_a_hand_off_in_a_circle_is_a_cycle() -> None:
    """Like any other."""
    manifest = handed()
    manifest["members"][PLANNER]["depends_on"] = ["controller"]
    assert "members: these wait for each other: planner → controller → planner" in errors(manifest)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"to": "nobody"}, "handoffs[0].to: there is no member 'nobody'"),
        ({"from": "nobody"}, "handoffs[0].from: there is no member 'nobody'"),
        ({"to": "planner"}, "handoffs[0].to: a member cannot hand over to itself"),
        ({"to": "evaluator"}, "handoffs[0].to: 'evaluator' judges: its task is nobody else's"),
        ({"from": "evaluator"}, "handoffs[0].from: 'evaluator' judges: its task is nobody else's"),
        ({"to": "writer"}, "members[3].tools: accept_handoff is missing: 'planner' hands over to it"),
        ({"from": "test_reader"}, "members[2].tools: hand_off is missing: it hands over to 'controller'"),
        ({"from": "test_reader"}, "members[0].tools: hand_off needs an entry in handoffs that is from this member"),
        ({"to": "writer"}, "members[5].tools: accept_handoff and reject_handoff need an entry in handoffs to"),
        ({"to": "writer"}, "members[5].context_sources[0]: handoff_record is for a member that is handed over to"),
    ],
)
def test_hand_offs_keep_their_rules(change: dict[str, str], message: str) -> None:
    """Both sides are members with the tools for it."""
    assert any(line.startswith(message) for line in errors(handed(**change)))


@pytest.mark.parametrize("between", ["test_reader", "reader_join"])
def test_who_takes_over_does_not_wait_for_the_end_of_who_hands_over(between: str) -> None:
    """Each would wait for the other: that starts when it is asked to take over, which is before that end."""
    manifest = handed()
    manifest["members"][READER]["depends_on"] = ["planner"]
    manifest["members"][-1]["depends_on"] = ["planner", between]
    told = f"handoffs[0].to: it waits for {between!r}, and that for the end of 'planner': it cannot take over before"
    assert told in errors(manifest)


def test_a_member_is_handed_over_to_once() -> None:
    """It has one contract."""
    manifest = handed()
    manifest["handoffs"] *= 2
    assert errors(manifest) == [
        "handoffs[0].to: 'controller' is handed over to more than once",
        "handoffs[1].to: 'controller' is handed over to more than once",
    ]


# --- contexts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "name", "message"),
    [
        (PLANNER, "joined_reader_evidence", "joined_reader_evidence needs a join before this member"),
        (READER, "joined_evidence", "joined_evidence needs a join before this member"),
        (WRITER, "candidate_diff", "candidate_diff needs a member that writes before this one"),
        (PLANNER, "raw_receipts", "raw_receipts needs a member that writes before this one"),
        (READER, "candidate_revision", "candidate_revision needs a member that writes before this one"),
        (EVALUATOR, "candidate_branch", "candidate_branch is for members that write"),
        (EVALUATOR, "handoff_record", "handoff_record is for a member that is handed over to"),
    ],
)
def test_a_context_is_there_when_its_member_starts(place: int, name: str, message: str) -> None:
    """What comes from others needs them before it."""
    [found] = errors(member(place, context_sources=[name]))
    assert found.startswith(f"members[{place}].context_sources[0]: {message}")


def test_assigned_paths_without_somebody_to_assign_them_are_warned_of() -> None:
    """They would be empty."""
    assert warnings(member(PLANNER, tools=["start_worker"])) == [
        "members[1].context_sources[2]: nobody before it can assign any: that needs the tool create_task"
    ]


def test_whoever_calls_a_specialist_assigns_its_paths() -> None:
    """With `start_worker`, so nothing is missing."""
    assert [line for line in warnings(called(context_sources=["assigned_paths"])) if "assign any" in line] == []


# --- budgets and ends -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model_calls", 14, "members are reserved 15 model_calls, and there are 14"),
        ("tool_calls", 37, "members are reserved 38 tool_calls, and there are 37"),
        ("input_output_tokens", 99999, "members are reserved 100000 tokens, and there are 99999"),
        (
            "deadline_seconds",
            389,
            "the longest way through takes 390 s, and there are 389 s: "
            "planner → implementation_reader → reader_join → writer → evaluator",
        ),
    ],
)
def test_reserved_budgets_fit_into_the_aggregate(key: str, value: int, message: str) -> None:
    """Counts are summed, seconds go along the critical path; what just fits is fine."""
    manifest = seed()
    manifest["run"]["aggregate_budget"][key] = value
    assert errors(manifest) == [f"run.aggregate_budget.{key}: {message}"]
    manifest["run"]["aggregate_budget"][key] = value + 1
    assert errors(manifest) == []


def test_reserved_money_fits_as_well() -> None:
    """Where members reserve any; without a limit there is none to pass."""
    manifest = seed()
    for each in manifest["members"][:3]:
        each["budget"]["cost_usd"] = 0.4
    assert errors(manifest) == []
    manifest["members"][WRITER]["budget"]["cost_usd"] = 0.01
    assert errors(manifest) == ["run.aggregate_budget.cost_usd: members are reserved 1.21 cost_usd, and there are 1.2"]
    del manifest["run"]["aggregate_budget"]["cost_usd"]
    assert errors(manifest) == []


def test_the_grace_leaves_time_for_work() -> None:
    """It is within a member's own seconds."""
    manifest = with_part("cancellation", grace_seconds=60)
    assert errors(manifest) == [
        "members[0].budget.seconds: of 60 s the grace of 60 s is for its end: nothing is left for work"
    ]


@pytest.mark.parametrize(
    ("states", "message"),
    [
        (
            ["accepted", "rejected", "needs_human", "cancelled", "timed_out"],
            "run.terminal_states: a run can end in each of the six: budget_exhausted is missing",
        ),
        (
            ["accepted", "rejected", "needs_human", "cancelled", "timed_out", "budget_exhausted", "accepted"],
            "run.terminal_states[6]: 'accepted' is there more than once",
        ),
    ],
)
def test_all_six_terminal_states_are_listed_once(states: list[str], message: str) -> None:
    """A run can end in each of them."""
    assert errors(with_part("run", terminal_states=states)) == [message]


def test_another_terminal_state_is_unknown() -> None:
    """There are six."""
    found = errors(with_part("run", terminal_states=["accepted", "done"]))
    assert any(line.startswith("run.terminal_states[1]: 'done' is none of accepted, rejected") for line in found)


# --- what can hardly be meant -----------------------------------------------------------------------------------------


def test_a_member_that_cannot_change_the_outcome_is_warned_of() -> None:
    """Nothing that decides depends on it."""
    assert warnings(extra_member()) == [
        "members[5].id: nothing that 'evaluator' judges depends on it: it cannot change the outcome"
    ]


def test_a_join_that_nobody_waits_for_is_warned_of() -> None:
    """It joins for nobody."""
    manifest = seed()
    manifest["joins"].append({**manifest["joins"][0], "id": "other_join"})
    assert warnings(manifest) == ["joins[1].id: nobody waits for it"]


def test_a_repair_without_a_writer_is_warned_of() -> None:
    """There is nothing to repair."""
    manifest = member(WRITER, tools=["read_file"], allowed_writes=[], context_sources=["task_contract"])
    manifest["members"][EVALUATOR]["context_sources"] = ["task_contract"]
    assert warnings(manifest) == ["evaluation.otherwise[0]: nobody writes: there is nothing to repair"]


def test_a_roster_without_receipts_is_warned_of() -> None:
    """Then the verdict alone decides."""
    names = roster()
    del names["receipts"]
    assert warnings(None, names) == [
        "members[4].tools[1]: the roster has no receipts to read",
        "evaluation.accepts_when: the roster has no receipts: the verdict alone decides",
    ]


def test_where_nobody_writes_there_is_nothing_to_check() -> None:
    """Receipts are taken of candidates."""
    manifest, names = (
        member(WRITER, allowed_writes=[], tools=["read_file"], context_sources=["task_contract"]),
        roster(),
    )
    del names["receipts"]
    assert [line for line in warnings(manifest, names) if "verdict alone" in line] == []


def test_judgement_that_is_not_independent_is_noted() -> None:
    """Evaluator and planner, evaluator and writer: family, instructions, context."""
    names = roster()
    for name in ("reasoning-medium", "coding-medium", "evaluation-medium", "analysis-small"):
        names["profiles"][name] |= {"family": "f", "instructions": "house"}
    found = notes(None, names)
    assert [line.partition(": ")[2].partition(":")[0] for line in found] == [
        "'evaluator' and 'planner' have the same family (f)",
        "'evaluator' and 'planner' have the same instructions (house)",
        "'evaluator' and 'writer' have the same family (f)",
        "'evaluator' and 'writer' have the same instructions (house)",
    ]
    same = member(PLANNER, context_sources=["task_contract"])
    same["members"][EVALUATOR]["context_sources"] = ["task_contract"]
    assert any("same context (task_contract)" in line for line in notes(same))


# --- the roster -------------------------------------------------------------------------------------------------------

ENDPOINT = {"dialect": "openai", "url": "http://127.0.0.1:9/v1", "key_env": "KEY"}
GATEWAY = {"CONFIG": "{gateway_url} {gateway_token}"}


@pytest.mark.parametrize(
    ("part", "name", "value", "message"),
    [
        ("profiles", "p", {"backend": "none"}, "profiles.p.backend: 'none' is none of opencode-acp"),
        ("profiles", "p", {"backend": "acp"}, "profiles.p: backend acp needs agent_command"),
        ("profiles", "p", {"backend": "pi", "script": "s"}, "profiles.p.script: only backend scripted takes it"),
        ("profiles", "p", {"backend": "pi", "agent_command": "x"}, "profiles.p.agent_command: only backend acp takes"),
        ("profiles", "p", {"backend": "pi", "server_url": "http://x"}, "profiles.p.server_url: unknown member"),
        ("profiles", "p", {"backend": "pi", "env": {"A=B": ""}}, "profiles.p.env.A=B: a name is not empty and holds"),
        ("profiles", "p", {"backend": "pi", "env": GATEWAY}, "profiles.p.env.CONFIG: there is a gateway only with an"),
        ("profiles", "p", {"backend": "pi", "env": {"M": "{model}"}}, "profiles.p.env.M: {model} needs the profile's"),
        ("profiles", "p", {"backend": "pi", "endpoint": ENDPOINT}, "profiles.p.endpoint: the agent is not told of the"),
        ("profiles", "p", {"backend": "pi", "endpoint": {**ENDPOINT, "url": "x"}}, "profiles.p.endpoint.url: Expected"),
        ("profiles", " p", {"backend": "pi"}, "profiles. p: a name is 1 to 200 printable characters"),
        (
            "profiles",
            "p",
            {"backend": "pi", "enforces_tools": ["dig"]},
            "profiles.p.enforces_tools[0]: 'dig' is none of",
        ),
        ("profiles", "p", {"backend": "scripted", "script": "no.json"}, "profiles.p.script: /m/no.json: No such file"),
        (
            "profiles",
            "p",
            {"backend": "scripted", "script": "bad.json"},
            "profiles.p.script: /m/bad.json: $.x: unknown",
        ),
        ("tools", "replan", {"kinds": ["read"]}, "tools.replan: replan is a tool of avenor's own"),
        ("tools", "t", {"kinds": []}, "tools.t.kinds: Expected `array` of length >= 1"),
        ("tools", "t", {"kinds": ["switch_mode"]}, "tools.t.kinds[0]: 'switch_mode' is none of read"),
        ("tools", "t", {"kinds": ["execute"]}, "tools.t: a tool of kind execute needs commands"),
        ("tools", "t", {"kinds": ["other"]}, "tools.t: a tool of kind other needs names"),
        ("tools", "t", {"kinds": ["read"], "commands": ["ls"]}, "tools.t.commands: they mean something only with kind"),
        ("tools", "t", {"kinds": ["execute"], "commands": ["* x"]}, "tools.t.commands[0]: it begins with *"),
        ("tools", "t", {"kinds": ["other"], "names": ["**"]}, "tools.t.names[0]: it would allow any tool"),
        ("context", "task_contract", {"text": "x"}, "context.task_contract: task_contract is avenor's own"),
        ("context", "c", {}, "context.c: give exactly one of builtin, file, command, text; there is none"),
        (
            "context",
            "c",
            {"text": "x", "file": "f"},
            "context.c: give exactly one of builtin, file, command, text; there",
        ),
        ("context", "c", {"builtin": "magic"}, "context.c.builtin: 'magic' is none of task_contract"),
        ("context", "c", {"command": []}, "context.c.command: Expected `array` of length >= 1"),
        ("context", "c", {"command": [" "]}, "context.c.command[0]: the name of a program is expected"),
        ("context", "c", {"file": "none.md"}, "context.c.file: /m/none.md: No such file or directory"),
        ("context", "c", {"file": "bin.md"}, "context.c.file: /m/bin.md: it is not UTF-8 (byte 0)"),
        ("writes", "w", ["/etc"], "writes.w[0]: it must be relative to the repository"),
        ("writes", "w", ["a", ".git/hooks"], "writes.w[1]: nobody writes into .git but avenor"),
        ("receipts", "r", {"command": ["a\0"]}, "receipts.r.command[0]: there is a NUL in it"),
        ("receipts", "r", {"command": ["a"], "timeout": "soon"}, "receipts.r.timeout: "),
        ("receipts", "r", {"command": ["a"], "timeout": 0}, "receipts.r.timeout: it must be more than 0"),
    ],
)
def test_a_roster_keeps_its_rules(part: str, name: str, value: Any, message: str) -> None:
    """Whether its manifest uses the name or not."""
    files = {"/m/bad.json": b'{"x": 1}', "/m/bin.md": b"\xff"}
    found = errors(None, with_roster(part, name, value), files=files)
    assert any(line.startswith(message) for line in found)


def test_a_roster_that_is_right_has_all_of_it() -> None:
    """An endpoint with its variables, prices, names of tools."""
    names = roster()
    names["profiles"]["coding-medium"] |= {
        "endpoint": ENDPOINT,
        "model": "m",
        "env": {**GATEWAY, "MODEL": "{model}"},
        "enforces_tools": ["execute"],
    }
    names["tools"]["ask_wiki"] = {"kinds": ["other"], "names": ["wiki/*"]}
    assert errors(member(READER, tools=["ask_wiki"]), names) == []
