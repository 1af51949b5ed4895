"""`avenor verify` of a manifest: what is wrong with it, its plan, and what that is priced at."""

import os
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from avenor.cli.verify_report import Report
from avenor.host.backend_asks import backend_asks
from avenor.host.backend_names import backend_names
from avenor.host.regular import read_regular

if TYPE_CHECKING:
    from avenor.protocol.manifest.pricing import PlannedNode, Price

_UNITS = {"model_calls": "model calls", "tool_calls": "tool calls", "cost_usd": "dollars"}


def check_plan(file: str, roster: str | None, *, unsandboxed: bool) -> Report:
    """Everything about a manifest that can be told before it runs."""
    # It imports PyYAML: whoever verifies loops and teams does without.
    from avenor.protocol.manifest.loading import SIZE_LIMIT_BYTES, check_manifest

    names = backend_names(os.environ)
    checked = check_manifest(
        file,
        partial(read_regular, limit_bytes=SIZE_LIMIT_BYTES),
        roster_path=roster,
        backends=names,
        asks=backend_asks(names.folder),
        unsandboxed=unsandboxed,
    )
    found = checked.manifest
    return Report(
        file=file,
        kind="manifest",
        errors=checked.errors,
        warnings=checked.warnings,
        notes=checked.notes,
        contents=None if found is None else f"manifest {found.team_id}, {len(found.members)} members",
        hint=checked.hint,
        plan=[] if checked.price is None else list(_plan(checked.price)),
        more={"price": None if checked.price is None else msgspec.to_builtins(checked.price)},
    )


def _plan(price: "Price") -> Iterator[str]:
    width = max(len(node.id) for node in price.nodes)
    yield "plan:"
    for node in price.nodes:
        yield f"- {node.id:<{width}}  {_node(node)}"
    path = " → ".join(price.critical_path)
    yield f"longest way: {price.ideal_seconds:g} s: {path}"
    yield (
        f"one after the other: {price.serial_seconds:g} s; at best: {price.ideal_seconds:g} s; "
        f"saved by working at the same time: {price.saved_seconds:g} s"
    )
    yield "budget: reserved of available"
    for row in price.budget:
        name = _UNITS.get(row.unit, row.unit)
        if row.available is None:
            yield f"- {name:<11} {row.reserved:>9g} of no limit"
        else:
            yield f"- {name:<11} {row.reserved:>9g} of {row.available:g}, {row.available - row.reserved:g} left"
    yield _cost(price)


def _node(node: "PlannedNode") -> str:
    words = [f"{node.seconds:g} s" if node.kind == "member" else "join"]
    if node.needs:
        words.append(f"after {', '.join(node.needs)}")
    if node.callable_by:
        words.append(f"when called by {', '.join(node.callable_by)}")
    if node.writes:
        words.append(f"writes {', '.join(node.writes)}")
    if node.cost_usd is not None:
        words.append(f"at most ${node.cost_usd:g}")
    return ", ".join(words)


def _cost(price: "Price") -> str:
    if price.cost_usd is not None:
        return f"cost: at most ${price.cost_usd:g}, if every reserved token is of the dearest kind"
    return f"cost: not known, without prices of {', '.join(price.unpriced) or 'a roster'}"
