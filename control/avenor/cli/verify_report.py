"""What `avenor verify` has found about one file, and how that is printed."""

from collections.abc import Sequence
from typing import Any

import msgspec

from avenor.protocol.config_loading import Finding


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One file.

    Attributes:
        contents: What is in it, in a few words; None exactly if a run would refuse it.
        hint: Where the format is described, if its form is what is wrong.
        plan: Lines for people about what it would do.
        more: Further members of its JSON object.
    """

    file: str
    kind: str
    errors: Sequence[Finding]
    warnings: Sequence[Finding]
    notes: Sequence[Finding]
    contents: str | None
    hint: str | None
    plan: Sequence[str] = ()
    more: dict[str, Any] = {}

    @property
    def is_ok(self) -> bool:
        """Whether a run would take it."""
        return self.contents is not None

    def as_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        found = {name: msgspec.to_builtins(getattr(self, name)) for name in ("errors", "warnings", "notes")}
        return {"file": self.file, "kind": self.kind, "ok": self.is_ok, **found, **self.more}

    def lines(self) -> list[str]:
        """As it is printed for people."""
        lines = [found.line() for found in self.errors]
        lines += [found.line("warning") for found in self.warnings]
        lines += [found.line("note") for found in self.notes]
        lines += self.plan
        if self.is_ok:
            return [*lines, f"{self.file}: {self.contents}: ok"]
        many = len(self.errors)
        hint = "" if self.hint is None else f"; {self.hint}"
        return [*lines, f"{self.file}: {self.kind}: {many} error{'s' if many > 1 else ''}{hint}"]
