"""What a manifest run came to, in figures, and what of it was waste. Pure; times are Unix milliseconds.

Tolerant: what an event lacks, or has of a wrong type, is left out.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    Event = dict[str, Any]
    Facts = dict[str, Any]

_UNITS = ("model_calls", "tool_calls", "tokens", "cost_usd", "seconds")
_OVER = frozenset({"done", "failed", "missing", "lost", "effect_unknown", "reconciled", "cancelled", "timed_out"})


class ManifestFigures:
    """Reads along with the events of a run; those that are none of a manifest are passed over."""

    def __init__(self) -> None:
        self._start: Facts = {}
        self._end: Facts = {}
        self._tasks: dict[str, Facts] = {}
        self._used: dict[str, Facts] = {}
        self._notes: list[Facts] = []
        self._results: list[Facts] = []
        self._joins: dict[str, Facts] = {}
        self._conflicted: set[str] = set()
        self._stale: set[str] = set()
        self._candidates: list[Facts] = []
        self._receipts: list[Facts] = []
        self._verdicts: list[Facts] = []
        self._authority: list[Facts] = []
        self._handoffs: list[Facts] = []
        self._plans = 0
        self._last_at = 0

    def take(self, event: Event, at: int) -> None:
        """The next event, of this time."""
        self._last_at = max(self._last_at, at)
        handler = _HANDLERS.get(str(event.get("event")))
        if handler is not None:
            handler(self, event, at)

    def finish(self) -> Facts | None:
        """The figures; None of a run without a manifest."""
        if not self._start:
            return None
        tasks = [self._task_facts(task) for task in self._tasks.values()]
        return {
            **self._start,
            "state": None,
            "reason": None,
            "revision": None,
            **self._end,
            "tasks": tasks,
            "used": _total(self._used.values()),
            "budget_notes": self._notes,
            "joins": list(self._joins.values()),
            "receipts": self._receipts,
            "verdicts": self._verdicts,
            "authority": self._authority,
            "handoffs": self._handoffs,
            "waste": self._waste(tasks),
        }

    # ---- what came

    def start(self, event: Event, at: int) -> None:
        self._start = {
            "started_at": at,
            "team_id": _str(event.get("team_id")),
            "source_revision": _str(event.get("source_revision")),
            "sandbox": _str(event.get("sandbox")),
            "metering": _object(event.get("metering")),
            "limits": _object(event.get("limits")),
            "correlations": _objects(event.get("correlations")),
        }

    def end(self, event: Event, _at: int) -> None:
        if not self._end:
            revision = _str(event.get("revision")) or None
            self._end = {
                "state": _str(event.get("state")),
                "reason": _str(event.get("reason")) or None,
                "revision": revision,
            }

    def task(self, event: Event, at: int) -> None:
        task_id, word = _str(event.get("task_id")), _str(event.get("state"))
        task = self._tasks.setdefault(task_id, _new_task(event, at))
        task["state"] = word
        attempt_id = _str(event.get("attempt_id"))
        if not attempt_id:
            return
        attempt = next((each for each in task["attempts"] if each["attempt_id"] == attempt_id), None)
        if attempt is None:
            attempt = {"attempt_id": attempt_id, "started_at": at, "ended_at": None, "state": word, "reason": ""}
            task["attempts"].append(attempt)
        attempt.update(state=word, reason=_str(event.get("reason")) or attempt["reason"])
        if word in _OVER and attempt["ended_at"] is None:
            attempt["ended_at"] = at

    def budget(self, event: Event, _at: int) -> None:
        op, account = _str(event.get("op")), _str(event.get("account"))
        if op == "debit":
            amounts = _object(event.get("amounts"))
            self._used[account] = _total([self._used.get(account, {}), amounts])
        elif op in ("warn", "block"):
            self._notes.append(
                {"op": op, "account": account, "unit": _str(event.get("unit")), "reason": _str(event.get("reason"))}
            )

    def result(self, event: Event, at: int) -> None:
        status = _str(event.get("status"))
        if status == "stale":
            self._stale.add(_str(event.get("attempt_id")))
        self._results.append(
            {
                "at": at,
                "task_id": _str(event.get("task_id")),
                "attempt_id": _str(event.get("attempt_id")),
                "status": status,
                "findings": _objects(_object(event.get("result")).get("findings")),
            }
        )

    def join(self, event: Event, at: int) -> None:
        join_id = _str(event.get("join_id"))
        join = self._joins.setdefault(
            join_id, {"join_id": join_id, "at": at, "state": "", "conflicts": 0, "duplicates": 0, "rejected": 0}
        )
        join.update(at=at, state=_str(event.get("state")))
        for name in ("conflicts", "duplicates", "rejected"):
            join[name] = max(join[name], len(_objects(event.get(name))))
        self._stale |= {_str(each.get("attempt_id")) for each in _objects(event.get("rejected"))}
        for conflict in _objects(event.get("conflicts")):
            self._conflicted |= {_str(side.get("task_id")) for side in _objects(conflict.get("sides"))}

    def candidate(self, event: Event, at: int) -> None:
        files = set(_texts(event.get("files")))
        self._candidates.append({"at": at, "task_id": _str(event.get("task_id")), "files": files})

    def receipt(self, event: Event, _at: int) -> None:
        told = {name: _str(event.get(name)) for name in ("name", "revision", "output")}
        code = event.get("exit_code")
        exit_code = code if isinstance(code, int) else None
        self._receipts.append({**told, "passed": event.get("passed") is True, "exit_code": exit_code})

    def verdict(self, event: Event, at: int) -> None:
        named = ("attempt_id", "verdict", "revision", "counted_as", "failed_criterion", "reason")
        self._verdicts.append({"at": at, **{name: _str(event.get(name)) for name in named}})

    def held(self, event: Event, _at: int) -> None:
        named = ("attempt_id", "tool", "tool_kind", "decision", "permitted_by", "detail")
        if event.get("decision") != "allow":
            self._authority.append({name: _str(event.get(name)) for name in named})

    def handoff(self, event: Event, at: int) -> None:
        self._handoffs.append({"at": at, **{name: _str(event.get(name)) for name in ("from_task", "to_task", "state")}})

    def plan(self, _event: Event, _at: int) -> None:
        self._plans += 1

    # ---- what it comes to

    def _task_facts(self, task: Facts) -> Facts:
        ready = self._ready_at(task)
        began = task["attempts"][0]["started_at"] if task["attempts"] else self._last_at
        for attempt in task["attempts"]:
            end = self._last_at if attempt["ended_at"] is None else attempt["ended_at"]
            attempt["duration_ms"] = max(0, end - attempt["started_at"])
        return {
            **task,
            "dependency_wait_ms": max(0, min(ready, began) - task["created_at"]),
            "queue_ms": max(0, began - ready) if task["attempts"] else 0,
            "work_ms": sum(attempt["duration_ms"] for attempt in task["attempts"]),
            "used": _total([self._used.get(task["task_id"], {})]),
            "changed_a_decision": self._has_changed(task["task_id"]),
        }

    def _ready_at(self, task: Facts) -> int:
        """When all that it waits for was done; the end of the log if that never came."""
        times: list[int] = [task["created_at"]]
        for name in task["waits_for"]:
            if name in self._joins:
                times.append(self._joins[name]["at"])
            else:
                times.append(_done_at(self._tasks.get(name), self._last_at))
        return max(times)

    def _has_changed(self, task_id: str) -> bool | None:
        """Whether what a task has found shows in something decided later; None where it has found nothing.

        That is so where what it has changed became a candidate, where a claim of its was in a conflict, and where a
        later result or candidate has to do with it: the same subject, its attempt as evidence, or a change in a file
        that its evidence names.
        """
        counted = [each for each in self._results if each["task_id"] == task_id and each["status"] == "accepted"]
        if not counted:
            return None
        if task_id in self._conflicted or any(each["task_id"] == task_id for each in self._candidates):
            return True
        return any(self._shows(result) for result in counted)

    def _shows(self, result: Facts) -> bool:
        subjects = {_words(finding.get("subject")) for finding in result["findings"]}
        sources = {
            _str(evidence.get("source"))
            for finding in result["findings"]
            for evidence in _objects(finding.get("evidence"))
        }
        for later in self._results:
            if later["at"] >= result["at"] and later["task_id"] != result["task_id"]:
                told = later["findings"]
                cited = {_str(each.get("source")) for finding in told for each in _objects(finding.get("evidence"))}
                if subjects & {_words(finding.get("subject")) for finding in told} or result["attempt_id"] in cited:
                    return True
        return any(each["at"] >= result["at"] and sources & each["files"] for each in self._candidates)

    def _waste(self, tasks: list[Facts]) -> Facts:
        attempts = [attempt for task in tasks for attempt in task["attempts"]]
        wall = max(0, self._last_at - self._start["started_at"])
        work = sum(attempt["duration_ms"] for attempt in attempts)
        cancelled = [task for task in tasks if task["state"] == "cancelled" and task["attempts"]]
        cost = _total(self._used.values())["cost_usd"]
        accepted = sum(1 for task in tasks if task["state"] == "done")
        return {
            "queue_ms": sum(task["queue_ms"] for task in tasks),
            "dependency_wait_ms": sum(task["dependency_wait_ms"] for task in tasks),
            "active_workers_most": _most_at_once(attempts, self._last_at),
            "active_workers_mean": round(work / wall, 2) if wall else 0.0,
            "cancelled_tasks": len(cancelled),
            "cancelled_work_ms": sum(task["work_ms"] for task in cancelled),
            "lost_attempts": sum(
                1 for attempt in attempts if attempt["state"] in ("lost", "effect_unknown", "reconciled")
            ),
            "stale_results": len(self._stale),
            "late_results": sum(1 for result in self._results if result["status"] == "late"),
            "conflicts": sum(join["conflicts"] for join in self._joins.values()),
            "join_disagreements": sum(1 for join in self._joins.values() if join["conflicts"]),
            "duplicate_investigations": sum(join["duplicates"] for join in self._joins.values()),
            "repair_depth": sum(1 for verdict in self._verdicts if verdict["counted_as"] == "repair"),
            "replans": self._plans,
            "results_without_effect": [task["task_id"] for task in tasks if task["changed_a_decision"] is False],
            "accepted_tasks": accepted,
            "cost_per_accepted_task_usd": round(cost / accepted, 6) if accepted else None,
            "cost_usd": cost,
            "wall_ms": wall,
            "work_ms": work,
        }


_HANDLERS = {
    "avenor.manifest.start": ManifestFigures.start,
    "avenor.manifest.end": ManifestFigures.end,
    "avenor.task": ManifestFigures.task,
    "avenor.budget": ManifestFigures.budget,
    "avenor.result": ManifestFigures.result,
    "avenor.join": ManifestFigures.join,
    "avenor.candidate": ManifestFigures.candidate,
    "avenor.receipt": ManifestFigures.receipt,
    "avenor.verdict": ManifestFigures.verdict,
    "avenor.authority": ManifestFigures.held,
    "avenor.handoff": ManifestFigures.handoff,
    "avenor.plan": ManifestFigures.plan,
}


def _new_task(event: Event, at: int) -> Facts:
    return {
        "task_id": _str(event.get("task_id")),
        "member": _str(event.get("member")),
        "parent_task": _str(event.get("parent_task")) or None,
        "created_at": at,
        "waits_for": _texts(event.get("waits_for")),
        "state": "",
        "attempts": [],
    }


def _done_at(task: Facts | None, last_at: int) -> int:
    if task is None or not task["attempts"]:
        return last_at
    ended = task["attempts"][-1]["ended_at"]
    return last_at if ended is None else int(ended)


def _most_at_once(attempts: list[Facts], last_at: int) -> int:
    steps = [(attempt["started_at"], 1) for attempt in attempts]
    steps += [(last_at if attempt["ended_at"] is None else attempt["ended_at"], -1) for attempt in attempts]
    most = now = 0
    for _at, step in sorted(steps):  # at one moment ends come first
        now += step
        most = max(most, now)
    return most


def _total(amounts: Iterable[Mapping[str, Any]]) -> Facts:
    total: Facts = dict.fromkeys(_UNITS, 0)
    for each in amounts:
        for unit in _UNITS:
            value = each.get(unit, 0)
            total[unit] = round(total[unit] + (value if isinstance(value, (int, float)) else 0), 9)
    return total


def _words(value: object) -> str:
    return " ".join(_str(value).casefold().split())


def _object(value: Any) -> Facts:
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _objects(value: Any) -> list[Facts]:
    return [each for each in _list(value) if isinstance(each, dict)]


def _texts(value: Any) -> list[str]:
    return [each for each in _list(value) if isinstance(each, str)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType]


def _str(value: object) -> str:
    return value if isinstance(value, str) else ""
