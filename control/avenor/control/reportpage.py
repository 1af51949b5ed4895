"""One page for people with the figures of runs: nothing but HTML and CSS, and nothing from any other host. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from avenor.control.manifestpage import manifest_sections
from avenor.control.pageparts import cell, colour_of, duration_text, outcome_cell, table
from avenor.control.safetext import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from avenor.control.figures import Facts

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1f24; --soft: #59636e; --rule: #d4d9df; --lane: #f0f2f5;
  --done: #1a7f37; --failed: #c62828; --waits: #9a6700; --other: #57606a; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --ink: #e6e9ed; --soft: #9aa4af; --rule: #343b43;
  --lane: #1f242a; --done: #4fb364; --failed: #f2766c; --waits: #d9a520; --other: #8b949e; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.45 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; } h3 { font-size: 1rem; margin-bottom: .4rem; }
.soft, figcaption { color: var(--soft); } .done { color: var(--done); } .failed { color: var(--failed); }
.waits { color: var(--waits); } .other { color: var(--other); }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: .6rem; margin: 0; }
dl div { border-left: 3px solid var(--rule); padding-left: .6rem; } dt { color: var(--soft); font-size: .85rem; }
dd { margin: 0; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .7rem .3rem 0; border-bottom: 1px solid var(--rule);
  overflow-wrap: normal; } th { color: var(--soft); font-weight: 600; } td.number, th.number { text-align: right; }
figure { margin: 0; } .lane { margin: .35rem 0; } .lane > span { font-size: .85rem; }
.track { position: relative; height: 1.1rem; background: var(--lane); border-radius: 3px; }
.track i { position: absolute; top: 0; bottom: 0; min-width: 2px; border-radius: 3px; background: currentColor; }
.track i.waits { opacity: .85; }
@media (max-width: 30rem) { table { font-size: .82rem; } th, td { padding-right: .4rem; } }
"""
# What every page begins with.
PAGE_HEAD = "<!doctype html>\n"
_NAMES = {"start": "waiting for the agent", "permission": "waiting for a permission", "retry": "waiting to try again"}


def report_page(runs: Sequence[Facts]) -> str:
    """The page of these runs, each as `figures_of` tells it, in this order."""
    title = f"Report: {_named(runs[0])}" if len(runs) == 1 else f"Report of {len(runs)} runs"
    body = "".join(map(_run, runs))
    if len(runs) > 1:
        body = _overview(runs) + body
    return (
        f'{PAGE_HEAD}<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # The page needs nothing, and shows what agents wrote: no browser shall fetch or run anything for it.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{cell(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{cell(title)}</h1>\n"
        f"{body}</body>\n</html>\n"
    )


def _overview(runs: Sequence[Facts]) -> str:
    rows = [
        (cell(_named(run)), outcome_cell(run["status"]), duration_text(run["duration_ms"]), *_spent(run))
        for run in runs
    ]
    return table("Overview", ("run", "came to", "took", "#tokens", "#cost"), rows, level=2)


def _run(run: Facts) -> str:
    parts = [
        f"<h2>{cell(_named(run))}</h2>\n",
        _summary(run),
        _timeline(run),
        manifest_sections(run["manifest"]) if run["manifest"] else "",
        table("Phases", ("phase", "came to", "took", "#tokens", "#cost"), map(_phase_row, run["phases"])),
        table("Turns", ("prompt", "came to", "took", "#tokens", "#cost"), map(_turn_row, run["turns"])),
        table("Permissions", ("asked", "answered", "by", "waited"), map(_permission_row, run["permissions"])),
        table(
            "Retries",
            ("phase", "#attempt", "because of", "after"),
            (
                (
                    cell(each["phase"] or "–"),
                    str(each["attempt"]),
                    cell(each["class"]),
                    duration_text(each["delay_ms"]),
                )
                for each in run["retries"]
            ),
        ),
        table("Waiting", ("for", "what", "how long"), map(_wait_row, run["waits"])),
        table(
            "Errors",
            ("from", "message"),
            ((cell(each.get("source", "")), cell(each.get("message", ""))) for each in run["errors"]),
        ),
    ]
    return "".join(parts)


def _summary(run: Facts) -> str:
    tools = run["tools"]
    facts = [
        ("came to", outcome_cell(run["status"]) + _because(run)),
        ("began", _clock(run["started_at"])),
        ("took", duration_text(run["duration_ms"])),
        ("tokens", _spent(run)[0]),
        ("cost", _spent(run)[1]),
        ("tool calls", f"{tools['calls']}" + (f", {tools['failed']} failed" if tools.get("failed") else "")),
        ("waited", duration_text(sum(wait["ms"] for wait in run["waits"]))),
        ("kind", cell(run.get("kind", "–"))),
        ("backend", cell(run.get("backend", "–"))),
        ("directory", cell(run.get("dir", "–"))),
        ("run", cell(run["run_id"] or "–")),
    ]
    if run["resumed"]:
        times = len(run["resumed"])
        facts.append(("resumed", "once" if times == 1 else f"{times} times"))
    return "<dl>" + "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts) + "</dl>\n"


def _timeline(run: Facts) -> str:
    """A lane for each phase, or for the turns where there are none, and one for each kind of waiting."""
    lanes: dict[str, list[str]] = {}
    for entry in run["phases"] or run["turns"]:
        name = "/".join(filter(None, (entry["path"], entry["name"]))) or "turns"
        end = entry["started_at"] + entry["duration_ms"]
        told = f"{name}: {entry['outcome']}, {duration_text(entry['duration_ms'])}"
        lanes.setdefault(name, []).append(_bar(run, entry["started_at"], end, colour_of(entry["outcome"]), told))
    for wait in run["waits"]:
        name = _NAMES[wait["what"]]
        told = f"{name}: {wait['detail']}, {duration_text(wait['ms'])}"
        lanes.setdefault(name, []).append(_bar(run, wait["from"], wait["to"], "waits", told))
    if not lanes:
        return ""
    rows = "".join(
        f'<div class="lane"><span>{cell(name)}</span><div class="track">{"".join(bars)}</div></div>\n'
        for name, bars in lanes.items()
    )
    caption = f"{_clock(run['started_at'])}, and {duration_text(run['duration_ms'])} from left to right"
    return f"<h3>Time line</h3>\n<figure>\n{rows}<figcaption>{caption}</figcaption>\n</figure>\n"


def _bar(run: Facts, start: int, end: int, colour: str, told: str) -> str:
    whole = max(1, run["duration_ms"])
    left = min(100.0, max(0.0, 100 * (start - run["started_at"]) / whole))
    width = min(100 - left, 100 * max(0, end - start) / whole)
    style = f"left:{left:.3f}%;width:{width:.3f}%"
    return f'<i class="{colour}" style="{style}" role="img" aria-label="{cell(told)}" title="{cell(told)}"></i>'


def _phase_row(phase: Facts) -> tuple[str, ...]:
    name = "/".join(filter(None, (phase["path"], phase["name"])))
    notes = [f"iteration {phase['iteration']}"] if phase["iteration"] else []
    notes += [f"attempt {phase['attempt']}"] if phase["attempt"] > 1 else []
    label = phase.get("abort_marker_label") or phase.get("exit_marker_label")
    stop = ", ".join(filter(None, (str(phase["stop_reason"] or ""), str(label or ""))))
    return (
        cell(name) + (f' <span class="soft">{cell(", ".join(notes))}</span>' if notes else ""),
        outcome_cell(phase["outcome"]) + (f" ({cell(stop)})" if stop else ""),
        duration_text(phase["duration_ms"]),
        _tokens(phase),
        _cost(phase),
    )


def _turn_row(turn: Facts) -> tuple[str, ...]:
    name = "/".join(filter(None, (turn["path"], turn["name"])))
    prompt = one_line(turn["prompt"])
    shown = prompt if len(prompt) <= 120 else prompt[:119] + "…"
    detail = ", ".join(filter(None, (str(turn["stop_reason"] or ""), str(turn.get("error", "")))))
    return (
        (f'<span class="soft">{cell(name)}</span> ' if name else "") + cell(shown),
        outcome_cell(turn["outcome"]) + (f" ({cell(detail)})" if detail else ""),
        duration_text(turn["duration_ms"]),
        _tokens(turn),
        _cost(turn),
    )


def _permission_row(asked: Facts) -> tuple[str, ...]:
    question = " ".join(filter(None, (asked["tool"], asked["question"])))
    where = f' <span class="soft">{cell(asked["phase"])}</span>' if asked["phase"] else ""
    if asked["answered_at"] is None:
        return cell(question) + where, '<span class="waits">nobody answered</span>', "–", "to the end"
    answer = " ".join(filter(None, (asked["answer"], f"({asked['option_id']})" if asked["option_id"] else "")))
    waited = duration_text(asked["answered_at"] - asked["asked_at"])
    return cell(question) + where, cell(answer), cell(asked["source"] or "–"), waited


def _wait_row(wait: Facts) -> tuple[str, ...]:
    return _NAMES[wait["what"]].removeprefix("waiting "), cell(wait["detail"]), duration_text(wait["ms"])


def _because(run: Facts) -> str:
    facts = [str(run[name]) for name in ("stop_reason", "reason") if run[name]]
    return f" ({cell(': '.join(facts))})" if facts else ""


def _spent(run: Facts) -> tuple[str, str]:
    """Tokens and cost of all; of a manifest run as its ledger has them, which agents by themselves may tell in part."""
    if not run["manifest"]:
        return _tokens(run), _cost(run)
    used = run["manifest"]["used"]
    return (f"{used['tokens']:,}" if used["tokens"] else "–", f"${used['cost_usd']:,.4f}" if used["cost_usd"] else "–")


def _tokens(entry: Facts) -> str:
    total = entry["usage"]["total_tokens"]
    return f"{total:,}" if total else "–"


def _cost(entry: Facts) -> str:
    return f"${entry['usage']['cost_usd']:,.4f}" if "cost_usd" in entry["usage"] else "–"


def _named(run: Facts) -> str:
    return str(run.get("run_label") or run["run_id"] or "a run")


def _clock(at_ms: int) -> str:
    when = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f'<time datetime="{when.isoformat()}">{when:%Y-%m-%d %H:%M:%S} UTC</time>'
