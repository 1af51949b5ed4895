"""What a report shows of a manifest run: its tasks, its budget, what was decided, and what was waste. Pure."""

from __future__ import annotations

from avenor.control.pageparts import cell, duration_text, outcome_cell, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from avenor.control.manifest_figures import Facts

_UNITS = {"model_calls": "model calls", "tool_calls": "tool calls", "tokens": "tokens", "cost_usd": "cost"}


def manifest_sections(manifest: Facts) -> str:
    """The sections of one run, as `ManifestFigures.finish` tells it."""
    return "".join(
        (
            _summary(manifest),
            table(
                "Tasks",
                ("task", "came to", "waited for others", "queued", "worked", "#tokens", "#cost", "changed a decision"),
                map(_task_row, manifest["tasks"]),
            ),
            table("Budget", ("unit", "#limit", "#used"), _budget_rows(manifest)),
            table("Near or beyond a limit", ("what", "whose", "unit", "why"), map(_note_row, manifest["budget_notes"])),
            table(
                "Joins",
                ("join", "came to", "#conflicts", "#duplicates", "#rejected"),
                map(_join_row, manifest["joins"]),
            ),
            table("Checks", ("check", "candidate", "came to", "output"), map(_receipt_row, manifest["receipts"])),
            table("Verdicts", ("by", "verdict", "counted as", "why"), map(_verdict_row, manifest["verdicts"])),
            table(
                "Held against authority",
                ("attempt", "tool", "decision", "field", "why"),
                map(_held_row, manifest["authority"]),
            ),
            _waste(manifest["waste"]),
        )
    )


def _summary(manifest: Facts) -> str:
    facts = [
        ("manifest", cell(manifest["team_id"])),
        ("state", outcome_cell(manifest["state"]) + (f" ({cell(manifest['reason'])})" if manifest["reason"] else "")),
        ("source", cell(manifest["source_revision"])),
        ("accepted revision", cell(manifest["revision"] or "–")),
        ("sandbox", cell(manifest["sandbox"])),
    ]
    for each in manifest["correlations"]:
        members = " and ".join(map(str, each.get("members", ())))
        facts.append(("not independent", cell(f"{members}: same {each.get('shared', '')} {each.get('value', '')}")))
    return _facts("Manifest", facts)


def _waste(waste: Facts) -> str:
    per_task = waste["cost_per_accepted_task_usd"]
    facts = [
        ("wall clock", duration_text(waste["wall_ms"])),
        ("work of all", duration_text(waste["work_ms"])),
        ("cost of all", f"${waste['cost_usd']:,.4f}"),
        ("cost per accepted task", "–" if per_task is None else f"${per_task:,.4f}"),
        ("workers at once", f"{waste['active_workers_most']} at most, {waste['active_workers_mean']:g} in the mean"),
        ("waited for others", duration_text(waste["dependency_wait_ms"])),
        ("queued", duration_text(waste["queue_ms"])),
        ("cancelled work", f"{duration_text(waste['cancelled_work_ms'])} in {waste['cancelled_tasks']} tasks"),
        ("lost attempts", str(waste["lost_attempts"])),
        ("stale results", str(waste["stale_results"])),
        ("late results", str(waste["late_results"])),
        ("conflicts", f"{waste['conflicts']} in {waste['join_disagreements']} joins"),
        ("duplicate investigations", str(waste["duplicate_investigations"])),
        ("repairs", str(waste["repair_depth"])),
        ("new plans", str(waste["replans"])),
        ("changed no decision", cell(", ".join(waste["results_without_effect"]) or "–")),
    ]
    return _facts("Waste", facts)


def _facts(title: str, facts: list[tuple[str, str]]) -> str:
    rows = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)
    return f"<h3>{title}</h3>\n<dl>{rows}</dl>\n"


def _task_row(task: Facts) -> tuple[str, ...]:
    notes = [f"{len(task['attempts'])} attempts"] if len(task["attempts"]) > 1 else []
    notes += [f"started by {task['parent_task']}"] if task["parent_task"] else []
    used = task["used"]
    return (
        cell(task["task_id"]) + (f' <span class="soft">{cell(", ".join(notes))}</span>' if notes else ""),
        outcome_cell(task["state"] if task["attempts"] or task["state"] != "created" else "not started"),
        duration_text(task["dependency_wait_ms"]),
        duration_text(task["queue_ms"]),
        duration_text(task["work_ms"]),
        f"{used['tokens']:,}" if used["tokens"] else "–",
        f"${used['cost_usd']:,.4f}" if used["cost_usd"] else "–",
        {True: "yes", False: "no", None: "–"}[task["changed_a_decision"]],
    )


def _budget_rows(manifest: Facts) -> Iterator[tuple[str, ...]]:
    for unit, name in _UNITS.items():
        limit = manifest["limits"].get(unit)
        form = "${:,.4f}" if unit == "cost_usd" else "{:,}"
        yield name, "–" if limit is None else form.format(limit), form.format(manifest["used"][unit])


def _note_row(note: Facts) -> tuple[str, ...]:
    what = "blocked" if note["op"] == "block" else "warned"
    return what, cell(note["account"]), cell(_UNITS.get(note["unit"], note["unit"])), cell(note["reason"])


def _join_row(join: Facts) -> tuple[str, ...]:
    counts = (str(join["conflicts"]), str(join["duplicates"]), str(join["rejected"]))
    return (cell(join["join_id"]), outcome_cell(join["state"]), *counts)


def _receipt_row(receipt: Facts) -> tuple[str, ...]:
    came_to = outcome_cell("passed" if receipt["passed"] else "failed")
    if not receipt["passed"]:
        code = receipt["exit_code"]
        came_to += " (ended without an exit code)" if code is None else f" (exit code {code})"
    last = receipt["output"].strip().rpartition("\n")[2]
    return cell(receipt["name"]), cell(receipt["revision"][:12]), came_to, cell(last)


def _verdict_row(verdict: Facts) -> tuple[str, ...]:
    why = ": ".join(filter(None, (verdict["failed_criterion"], verdict["reason"])))
    return cell(verdict["attempt_id"]), cell(verdict["verdict"]), outcome_cell(verdict["counted_as"]), cell(why)


def _held_row(held: Facts) -> tuple[str, ...]:
    return tuple(cell(held[name]) for name in ("attempt_id", "tool", "decision", "permitted_by", "detail"))
