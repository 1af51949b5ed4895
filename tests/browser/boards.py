"""Drives the board as people do, in a real browser, and watches for what must never happen in it."""

import subprocess
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, ConsoleMessage, Locator, Page, Request

from tests.e2e.harness import WAIT_SECONDS, Client, Place, Stable

_WATCH_POLICY = """
window.violations = [];
addEventListener("securitypolicyviolation", ({violatedDirective, blockedURI}) =>
  violations.push(`${violatedDirective} ${blockedURI}`));
"""


class BoardProcess:
    """One `avenor board`."""

    def __init__(self, place: Place, *flags: str) -> None:
        self.process = place.start("board", *flags)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().decode().strip()

    @property
    def token(self) -> str:
        """The token that its address has."""
        return self.url.partition("#token=")[2]

    def stop(self) -> int:
        """End it as an operator does; its exit status."""
        self.process.terminate()
        self.process.communicate(timeout=WAIT_SECONDS)
        return self.process.returncode


class Looking:
    """A page, with the board of a supervisor once it is opened.

    Attributes:
        faults: What went wrong in the page.
        hosts: The hosts that were asked for anything.
    """

    def __init__(self, context: BrowserContext, stable: Stable) -> None:
        context.set_default_timeout(WAIT_SECONDS * 1000)
        self.stable = stable
        self.client = stable.connect()
        self.page: Page = context.new_page()
        self.faults: list[str] = []
        self._forgiven: list[str] = []
        self.hosts: set[str] = set()
        self.board: BoardProcess | None = None
        self.page.add_init_script(_WATCH_POLICY)
        self.page.on("console", self._note_console)
        self.page.on("pageerror", lambda error: self.faults.append(f"{error}\n{error.stack}"))
        self.page.on("request", self._note_request)
        self.page.on("dialog", lambda dialog: self.faults.append(f"a dialog: {dialog.message}"))

    def open(self, *flags: str) -> Page:
        """Start `avenor board` and go to the address that it prints."""
        self.board = BoardProcess(self.stable.place, "--socket", str(self.stable.socket), *flags)
        self.page.goto(self.board.url)
        self.link("Live")
        return self.page

    def check(self) -> None:
        """Nothing was wrong that is not forgiven."""
        assert self.page.evaluate("window.violations") == []
        faults = [fault for fault in self.faults if not any(words in fault for words in self._forgiven)]
        assert faults == [], "\n".join(faults)
        assert {urlsplit(f"//{host}").hostname for host in self.hosts} <= {"127.0.0.1"}

    def forgive(self, words: str) -> None:
        """Faults with these words in them are no faults here: the test provokes them."""
        self._forgiven.append(words)

    def spawn(self, *rules: dict[str, Any], **params: Any) -> str:
        """Spawn on a script of these rules, for a client that leaves at once, and owns nothing; the runtime id."""
        name = f"{params.get('label', 'script')}.json".replace("/", "-").replace(" ", "-")
        script = self.stable.place.script(*rules, name=name[-60:])
        with Client(self.stable.socket) as client:
            answer = client.spawn(self.stable.place, **{"script": script, "wait": "started", **params})
        return str(answer["runtime_id"])

    def status(self, runtime_id: str) -> dict[str, Any]:
        """The supervisor's snapshot."""
        with Client(self.stable.socket) as client:
            found: dict[str, Any] = client.call("status", runtime_id=runtime_id)
            return found

    def link(self, words: str) -> None:
        """Wait until the state of the connection reads so."""
        self.page.locator("#link").get_by_text(words, exact=True).wait_for()

    def node(self, name: str) -> Locator:
        """A runtime in the tree."""
        return self.page.get_by_role("treeitem").filter(has_text=name)

    def lane(self, name: str) -> Locator:
        """A lane of the time line."""
        return self.page.locator(".lane").filter(has=self.page.get_by_role("button", name=name))

    def items(self, kind: str) -> Locator:
        """The items of the transcript of one kind."""
        return self.page.locator(f".item.{kind}")

    def control(self, *words: str) -> str:
        """What `avenor control` prints."""
        socket = str(self.stable.socket)
        process = self.stable.place.start("control", "--socket", socket, *words)
        return process.communicate(timeout=WAIT_SECONDS)[0].decode()

    def _note_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"{message.text} ({message.location.get('url')})")

    def _note_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme != "data":
            self.hosts.add(parts.netloc)


def ended(process: "subprocess.Popen[bytes]") -> tuple[int, str]:
    """The exit status of a process, and what it said on stderr."""
    _, complaints = process.communicate(timeout=WAIT_SECONDS)
    return process.returncode, complaints.decode()
