"""The checks of a candidate: run by the runner, on exactly that revision, never by a member."""

from msgspec import UNSET

from avenor.protocol.errors import AvenorError
from avenor.protocol.manifest.binding import BoundReceipt
from avenor.protocol.manifest.events import ReceiptEvent
from avenor.runtimes.manifest.attempts import Setting
from avenor.runtimes.manifest.services import ReceiptRun


async def run_receipts(setting: Setting, revision: str) -> None:
    """Runs the checks that were not run on a revision yet, one after the other, and tells what each has come to."""
    view = setting.look()
    ran = {each.name for each in view.state.receipts_of(revision) if each.required}
    for declared in view.plan.manifest.receipts:
        if declared.name in ran:
            continue
        number = len(setting.look().state.receipts) + 1
        found = await _run(setting, declared, revision, number)
        event = ReceiptEvent(
            receipt_id=f"receipt-{number}",
            name=declared.name,
            revision=revision,
            passed=found.exit_code == 0,
            digest=found.digest,
            output=found.output,
            permitted_by="evaluation.accepts_when",
            exit_code=UNSET if found.exit_code is None else found.exit_code,
            required=True,
        )
        setting.journal.tell([event])


async def _run(setting: Setting, declared: BoundReceipt, revision: str, number: int) -> ReceiptRun:
    """A check that cannot be run has not passed."""
    try:
        return await setting.workshop.check(declared, revision, number)
    except AvenorError as error:
        return ReceiptRun(exit_code=None, output=f"the check could not be run: {error.message}", digest="")
