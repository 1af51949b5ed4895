"""The board in a real browser: real supervisors, `avenor board`, scripted agents."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.boards import BoardProcess, Looking
from tests.e2e.harness import WAIT_SECONDS, Place, Stable, first_event, say, steps
from tests.helpers import eventually_sync

pytestmark = pytest.mark.browser
expect.set_options(timeout=WAIT_SECONDS * 1000)

HANG: dict[str, Any] = {"do": "hang"}
ASK: dict[str, Any] = {
    "do": "tool",
    "title": "rm -r build",
    "kind": "execute",
    "input": {"command": "rm -r build", "cwd": "/srv/app"},
    "ask": True,
    "output": "gone",
}
TEAM = {
    "pre": [{"name": "triage", "prompt": "Which parts have changed?"}],
    "team": [
        {"name": "auth-review", "prompt": "Review auth."},
        {"name": "api-review", "prompt": "Review the API."},
        {"name": "docs-review", "prompt": "Review the docs.", "conditional": True},
    ],
    "post": [{"name": "report", "prompt": "Write the report."}],
}


def team_rules(hold: Path) -> list[dict[str, Any]]:
    """A team whose one member asks, whose other works until `hold` exists, and whose third is skipped."""
    return [
        steps(say("The docs are the same.\n<|team: skip | docs-review|>\n"), match="Which parts"),
        steps({"do": "think", "text": "Let me see."}, ASK, say("Auth is fine."), match="Review auth"),
        steps(say("Reading."), {"do": "wait_for", "path": str(hold)}, say("API is fine."), match="Review the API"),
        steps(say("All is fine.")),
    ]


def spawn_team(looking: Looking, label: str = "nightly") -> tuple[str, Path]:
    """A team, and the file that lets it go on."""
    place = looking.stable.place
    hold, config = place.path / f"{label}.go", place.path / "team.json"
    config.write_text(json.dumps(TEAM))
    return looking.spawn(*team_rules(hold), prompt=None, team_file=str(config), label=label), hold


def test_runtimes_are_a_tree_that_the_keyboard_moves_in(looking: Looking) -> None:
    """Children stand below who started them; arrows move, fold and unfold, and Enter selects."""
    parent = looking.spawn(steps(HANG), label="jockey")
    looking.spawn(steps(HANG), label="horse", parent_id=parent)
    page = looking.open()
    mule = looking.spawn(steps(HANG), label="mule", parent_id=parent)  # comes while the page is open
    expect(looking.node("mule")).to_have_attribute("aria-level", "2")
    expect(looking.node("horse")).to_have_attribute("aria-level", "2")
    expect(looking.node("jockey")).to_have_attribute("aria-expanded", "true")
    looking.node("jockey").click()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(looking.node("mule")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("heading", name="mule")).to_be_visible()
    expect(page.locator("#facts")).to_contain_text(mule)
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(looking.node("jockey")).to_have_attribute("aria-expanded", "false")
    expect(looking.node("mule")).to_have_count(0)
    page.keyboard.press("ArrowRight")
    expect(looking.node("mule")).to_be_visible()


def test_members_of_a_team_are_lanes_of_what_they_are_at(looking: Looking) -> None:
    """Phases that are over, one that asks, one that works, one that was skipped; then the end of each."""
    page = looking.open()
    runtime_id, hold = spawn_team(looking)
    expect(looking.lane("triage").locator(".at")).to_have_text("done")
    expect(looking.lane("docs-review").locator(".at")).to_have_text("skipped")
    expect(looking.lane("auth-review").locator(".at")).to_have_text(re.compile("^asking"))
    expect(looking.lane("api-review").locator(".at")).to_have_text(re.compile("^working"))
    expect(looking.lane("auth-review").locator("i[data-state=asking]")).to_have_count(1)
    expect(looking.lane("auth-review").get_by_role("img")).to_have_attribute("aria-label", re.compile("now asking"))
    expect(looking.node("nightly").locator(".state")).to_have_text("asking")
    expect(page).to_have_title("(1) avenor board")
    page.get_by_role("button", name="Allow once").click()
    hold.touch()
    expect(looking.lane("report").locator(".at")).to_have_text("done")
    expect(looking.lane("api-review").locator(".at")).to_have_text("done")
    expect(page.locator("#detail-state")).to_have_text("done")
    expect(page).to_have_title("avenor board")
    assert looking.status(runtime_id)["outcome"] == "DONE"


def test_a_lane_shows_only_what_was_said_in_it(looking: Looking) -> None:
    """Its name is a button that can be pressed and released."""
    page = looking.open()
    spawn_team(looking)
    expect(looking.items("message")).to_have_count(2)
    page.get_by_role("button", name="api-review").press("Enter")
    expect(looking.items("message")).to_have_text([re.compile("Reading")])
    expect(page.get_by_role("button", name="api-review")).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("heading", name="Transcript of api-review")).to_be_visible()
    page.get_by_role("button", name="Show all lanes").press("Enter")
    expect(looking.items("message")).to_have_count(2)


def test_a_run_that_has_ended_keeps_its_time_line_and_transcript(looking: Looking) -> None:
    """For as long as it is listed, also for who comes later."""
    runtime_id, hold = spawn_team(looking)
    hold.touch()
    asked = eventually_sync(lambda: looking.status(runtime_id)["permission"], WAIT_SECONDS)
    looking.client.call("answer_permission", runtime_id=runtime_id, request_id=asked["request_id"], option_id="reject")
    looking.client.call("wait", runtime_id=runtime_id, until="done")
    looking.open()
    for lane in ("triage", "auth-review", "api-review", "report"):
        expect(looking.lane(lane).locator(".at")).to_have_text("done")
    expect(looking.lane("auth-review").locator("i[data-state=asking]")).to_have_count(1)
    expect(looking.items("permission")).to_contain_text("rejected (Reject) by a client")
    expect(looking.items("note").last).to_contain_text("Run ended: DONE")


def test_a_run_that_is_pruned_leaves_the_tree(looking: Looking) -> None:
    """No event tells of that, so that the page asks from time to time."""
    page = looking.open()
    runtime_id = looking.spawn(steps({"do": "stop", "reason": "refusal"}), label="gone")
    looking.client.call("wait", runtime_id=runtime_id, until="done")
    looking.client.call("cancel", runtime_id=runtime_id, force=True)
    expect(looking.node("gone")).to_have_class(re.compile("ended"))
    looking.client.call("prune", keep=0)
    expect(looking.node("gone")).to_have_count(0)
    expect(page.get_by_role("heading", name="No runs yet")).to_be_visible()
    looking.forgive("404")  # it may have been looking at it just then


def test_chunks_are_one_message_and_tools_are_folded(looking: Looking) -> None:
    """A tool shows its title and status; Enter unfolds what it was given and what it put out."""
    page = looking.open()
    runtime_id = looking.spawn(
        steps(
            say("One message in many chunks.", chunks=9, message_id=None),
            {"do": "tool", "title": "Read it", "kind": "read", "input": {"path": "a.txt"}, "output": "line one"},
            {"do": "write", "path": "b.txt", "text": "new text\n"},
            say("And another."),
        ),
        prompt="the prompt itself",
    )
    looking.client.call("wait", runtime_id=runtime_id, until="done")
    expect(looking.items("prompt")).to_contain_text("the prompt itself")
    expect(looking.items("message")).to_have_text([re.compile("One message in many chunks"), re.compile("And another")])
    tool = looking.items("tool").filter(has_text="Read it")
    expect(tool.locator(".status")).to_have_text("read · completed")
    expect(tool.get_by_text("line one")).to_be_hidden()
    tool.locator("summary").press("Enter")
    expect(tool.get_by_text("line one")).to_be_visible()
    expect(tool.get_by_text('"path": "a.txt"')).to_be_visible()
    written = looking.items("tool").filter(has_text="b.txt")
    written.locator("summary").press("Enter")
    expect(written.get_by_text("+ new text")).to_be_visible()
    expect(page.locator("#detail-state")).to_have_text("idle")


def test_a_permission_is_answered_with_nothing_but_the_keyboard(looking: Looking) -> None:
    """It is announced, reached by Tab with a visible focus, and when it is gone the focus is not lost."""
    page = looking.open()
    runtime_id = looking.spawn(steps(ASK, say("Went on.")), label="asks")
    expect(page.locator("#say")).to_have_text("asks asks for permission: rm -r build")
    card = page.locator(".ask")
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Always allow":
            break
    style = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert style == "solid"
    page.keyboard.press("Shift+Tab")
    expect(card.get_by_role("button", name="Allow once")).to_be_focused()
    page.keyboard.press("Enter")
    expect(card).to_have_count(0)
    expect(page.get_by_role("log")).to_be_focused()
    expect(page.locator("#say")).to_have_text("Answered: Allow once")
    expect(looking.items("permission")).to_contain_text("allowed (Allow once) by a client")
    expect(looking.items("message")).to_contain_text("Went on.")
    response = first_event(looking.stable.log_path(runtime_id), "permission.response", {})
    assert response is not None
    assert (response["option_id"], response["source"]) == ("once", "control")


def test_a_word_goes_to_the_agent_with_the_answer(looking: Looking) -> None:
    """And what the tool was given can be read before."""
    page = looking.open()
    runtime_id = looking.spawn(steps({**ASK, "title": "Clean up"}, say("Went on.")))
    card = page.locator(".ask")
    card.get_by_text("What the tool was given").click()
    expect(card.get_by_text("/srv/app")).to_be_visible()
    card.get_by_text("Say something with the answer").click()
    card.get_by_role("textbox").fill("Use make clean.")
    card.get_by_role("button", name="Reject").click()
    expect(looking.items("permission")).to_contain_text("rejected (Reject) by a client: “Use make clean.”")
    assert first_event(looking.stable.log_path(runtime_id), "permission.response", {"message": "Use make clean."})


def test_what_another_client_owns_is_taken_over_only_when_pressed_again(looking: Looking) -> None:
    """The refusal says who owns it."""
    page = looking.open()
    runtime_id = looking.spawn(steps(ASK, say("Went on.")))
    looking.client.call("claim", runtime_id=runtime_id, force=True)
    page.get_by_role("button", name="Allow once").click()
    expect(page.locator(".ask").get_by_role("alert")).to_contain_text("Press again to take it over.")
    assert looking.status(runtime_id)["pending_permission"]
    looking.forgive("409")
    page.get_by_role("button", name="Allow once").click()
    expect(looking.items("message")).to_contain_text("Went on.")


def test_runs_are_cancelled_only_behind_the_switch_and_after_a_question(looking: Looking) -> None:
    """The switch is off at every load."""
    page = looking.open()
    runtime_id = looking.spawn(steps(HANG), label="long")
    expect(page.locator("#detail-name")).to_have_text("long")
    expect(page.get_by_role("button", name="Cancel run")).to_have_count(0)
    switch = page.get_by_role("switch", name="Controls")
    expect(switch).to_have_attribute("aria-checked", "false")
    switch.press("Space")
    expect(switch).to_have_attribute("aria-checked", "true")
    page.get_by_role("button", name="Cancel run…").press("Enter")
    expect(page.get_by_role("button", name="Let it run")).to_be_focused()
    page.keyboard.press("Escape")
    assert looking.status(runtime_id)["status"] != "ended"
    page.get_by_role("button", name="Cancel run…").press("Enter")
    page.get_by_role("button", name="Yes, cancel it").press("Enter")
    expect(page.locator("#detail-state")).to_have_text("cancelled")
    assert looking.status(runtime_id)["outcome"] == "KILLED"
    page.reload()
    expect(page.get_by_role("switch", name="Controls")).to_have_attribute("aria-checked", "false")


def test_a_prompt_goes_to_the_run_that_is_shown(looking: Looking) -> None:
    """A parked one wakes."""
    page = looking.open()
    runtime_id = looking.spawn(steps({"do": "echo"}), prompt="first")
    looking.client.call("wait", runtime_id=runtime_id, until="done")
    page.get_by_role("switch", name="Controls").click()
    page.get_by_label("Prompt", exact=True).fill("and now the second")
    page.keyboard.press("Control+Enter")
    expect(looking.items("message").last).to_contain_text("and now the second")
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("")


def test_what_agents_say_is_text_and_never_markup(looking: Looking) -> None:
    """Markup, escape sequences and controls that reorder what is read, in every place that an agent fills."""
    evil = "<img src=x onerror=\"document.title='hit'\"><script>alert(1)</script>"
    page = looking.open()
    looking.spawn(
        steps(
            say(f"{evil}\x1b[31mred\x1b[0m"),
            {"do": "think", "text": evil},
            {"do": "plan", "entries": [evil]},
            {"do": "tool", "title": evil, "kind": "other", "input": {"a": evil}, "output": evil},
            {**ASK, "title": f"{evil}\u202erm -r"},
        ),
        prompt=evil,
        label=evil,
    )
    expect(page.locator(".question")).to_have_text(f"{evil}rm -r")
    for kind in ("prompt", "message", "thought", "plan", "tool"):
        expect(looking.items(kind).first).to_contain_text(evil)
    looking.items("tool").first.locator("summary").click()
    expect(looking.items("message")).to_contain_text(f"{evil}red")
    expect(page.locator("#detail-name")).to_have_text(evil)
    assert page.locator("main img, main script").count() == 0
    assert page.title() == "(1) avenor board"


def test_a_long_transcript_is_bounded_and_reads_on_from_the_log(looking: Looking) -> None:
    """Thousands of chunks and tools; "Older…" goes back to the first prompt, and nothing is there twice."""
    page = looking.open()
    tools = [{"do": "tool", "title": f"tool number {n}", "output": "x"} for n in range(700)]
    runtime_id = looking.spawn(steps({"do": "flood", "count": 3000}, *tools, say("The end.")), prompt="the very first")
    looking.client.call("wait", runtime_id=runtime_id, until="done")
    expect(looking.items("message").last).to_contain_text("The end.")
    assert page.locator(".item").count() <= 500
    older = page.get_by_role("button", name="Older…")
    for _ in range(20):
        if not older.is_visible():
            break
        older.click()
        page.locator("#older:enabled").wait_for(state="attached")
    expect(looking.items("prompt")).to_contain_text("the very first")
    titles = looking.items("tool").locator(".excerpt").all_inner_texts()
    assert titles == [f"tool number {n}" for n in range(700)]
    expect(looking.items("message")).to_have_count(2)
    page.get_by_role("button", name="Go to the newest").click()
    expect(looking.items("message").last).to_be_in_viewport()


def test_who_reads_further_up_is_left_there(looking: Looking, place: Place) -> None:
    """What comes meanwhile does not move what is read; a button leads back to the newest."""
    page = looking.open()
    go = place.path / "go"
    lines = "\n".join(f"line {n}" for n in range(200))
    looking.spawn(
        steps(say(lines), {"do": "wait_for", "path": str(go)}, {"do": "think", "text": "hm"}, say("The news."))
    )
    transcript = page.get_by_role("log")
    expect(looking.items("message")).to_contain_text("line 199")
    transcript.press("Home")
    expect(page.get_by_role("button", name="Go to the newest")).to_be_visible()
    expect(transcript).to_have_js_property("scrollTop", 0)
    go.touch()
    expect(looking.items("message").last).to_contain_text("The news.")
    assert transcript.evaluate("(element) => element.scrollTop") == 0
    page.get_by_role("button", name="Go to the newest").click()
    expect(looking.items("message").last).to_be_in_viewport()
    expect(page.get_by_role("button", name="Go to the newest")).to_be_hidden()


def test_it_reconnects_when_the_supervisor_is_back(looking: Looking, place: Place) -> None:
    """It says that it is disconnected; what happened meanwhile is there afterwards, once."""
    page = looking.open()
    go = place.path / "go"
    hold = {"do": "wait_for", "path": str(go)}
    runtime_id = looking.spawn(steps(say("Before."), hold, {"do": "think", "text": "hm"}, say("Meanwhile."), ASK))
    expect(looking.items("message")).to_contain_text("Before.")
    looking.stable.shutdown("detach")
    looking.link("Disconnected, trying again")
    go.touch()
    log = looking.stable.log_path(runtime_id)
    eventually_sync(lambda: first_event(log, "permission.request", {}), WAIT_SECONDS)
    Stable(place)
    looking.link("Live")
    expect(page.locator(".question")).to_have_text("rm -r build")
    expect(looking.items("message")).to_have_text([re.compile("Before."), re.compile("Meanwhile.")])
    looking.forgive("503")
    looking.forgive("ERR_")


def test_the_token_is_asked_for_and_kept_out_of_the_address(looking: Looking) -> None:
    """Without a token, and with a wrong one, there is nothing to see but a form; a reload keeps a good one."""
    page = looking.page
    board = BoardProcess(looking.stable.place, "--socket", str(looking.stable.socket))
    base = board.url.partition("#")[0]
    page.goto(base)
    expect(page.get_by_role("heading", name="This board needs its token")).to_be_visible()
    expect(page.get_by_role("main")).to_be_hidden()
    page.get_by_label("Token").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_text("The server did not take the token.")).to_be_visible()
    page.get_by_label("Token").fill(board.token)
    page.keyboard.press("Enter")
    looking.link("Live")
    page.goto(board.url)
    page.reload()
    looking.link("Live")
    assert page.url == base
    assert board.token not in page.content()
    looking.forgive("401")


def test_with_nothing_to_see_it_says_how_to_start_a_run(looking: Looking) -> None:
    """And what it says works."""
    page = looking.open()
    command = page.locator("#nothing code").first.inner_text()
    assert command.startswith("avenor control spawn --backend scripted ")
    looking.control("spawn", "--backend", "scripted", "--prompt", "say hello", "--label", "first")
    expect(page.locator("#detail-name")).to_have_text("first")
    expect(page.locator("#nothing")).to_be_hidden()


def test_it_fits_a_telephone(looking: Looking) -> None:
    """At 360 pixels nothing must be scrolled sideways, whatever the words are."""
    looking.page.set_viewport_size({"width": 360, "height": 740})
    page = looking.open()
    spawn_team(looking, "a-label-that-is-far-too-long-for-any-telephone-in-the-whole-wide-world")
    expect(page.locator(".ask")).to_be_visible()
    page.get_by_role("switch", name="Controls").click()
    looking.items("tool").first.locator("summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    beyond = page.evaluate(
        "[...document.querySelectorAll('button, h2, .at, .text, input, textarea')]"
        ".filter((one) => one.checkVisibility() && one.getBoundingClientRect().right > 360).length"
    )
    assert beyond == 0


# The least contrast of any text with what is behind it; colours that shine through are mixed.
_LEAST_CONTRAST = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const mixed = (layers) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const colour of layers) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let least = [99, ""];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || !element.checkVisibility() || element.closest(".unseen, .skips, .track")) continue;
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.unshift(getComputedStyle(at).backgroundColor);
    const [a, b] = [light(mixed([...layers, getComputedStyle(element).color])), light(mixed(layers))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < least[0]) least = [contrast, node.data];
  }
  return least;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read_in_light_and_dark(looking: Looking, scheme: str) -> None:
    """The system's choice holds until another is made here, which a reload keeps; contrast is WCAG's AA or better."""
    looking.page.emulate_media(color_scheme="light" if scheme == "light" else "dark")
    page = looking.open()
    spawn_team(looking)
    looking.spawn(steps(say("no"), {"do": "fail", "message": "no such model"}), label="broken")
    expect(looking.node("broken").locator(".state")).to_have_text("failed")
    expect(page.locator(".ask")).to_be_visible()
    page.get_by_role("switch", name="Controls").click()
    background = "getComputedStyle(document.body).backgroundColor"
    own = page.evaluate(background)
    contrast, text = page.evaluate(_LEAST_CONTRAST)
    assert contrast >= 4.5, text
    toggle = page.get_by_role("button", name="Colours")
    while toggle.inner_text() != ("Dark" if scheme == "light" else "Light"):
        toggle.click()
    other = page.evaluate(background)
    assert other != own
    contrast, text = page.evaluate(_LEAST_CONTRAST)
    assert contrast >= 4.5, text
    page.reload()
    looking.link("Live")
    assert page.evaluate(background) == other


def test_who_wants_no_motion_gets_none(looking: Looking) -> None:
    """A segment that lasts breathes only for the others."""
    page = looking.open()
    looking.spawn(steps(HANG))
    segment = page.locator(".track i.open")
    expect(segment).to_be_visible()
    assert segment.evaluate("(one) => getComputedStyle(one).animationName") == "none"
    page.emulate_media(reduced_motion="no-preference")
    assert segment.evaluate("(one) => getComputedStyle(one).animationName") == "breathe"


def test_everything_on_the_page_has_a_name(looking: Looking) -> None:
    """Buttons, fields and regions, for those who hear the page."""
    page = looking.open()
    spawn_team(looking)
    expect(page.locator(".ask")).to_be_visible()
    page.get_by_role("switch", name="Controls").click()
    expect(page.get_by_role("tree", name="Runtimes")).to_be_visible()
    expect(page.get_by_role("log", name="Transcript")).to_be_visible()
    expect(page.get_by_role("region", name="Waiting for your answer")).to_be_visible()
    expect(page.get_by_role("article", name="nightly")).to_be_visible()
    outline = page.locator("body").aria_snapshot()
    assert re.findall(r"^\s*- (?:button|textbox|link|switch|img|treeitem)(?: \[.*\])?:?$", outline, re.MULTILINE) == []


def test_a_run_without_a_supervisor_is_shown_too(looking: Looking, place: Place) -> None:
    """Its own socket has no runtime ids; answering, prompting and the end work all the same."""
    socket = str(place.path / "run.sock")
    script = place.script(steps(ASK, say("Went on."), {"do": "wait_for", "path": str(place.path / "go")}))
    run = place.run("--prompt", "do it", "--script", script, "--control-socket", socket, "--label", "alone")
    run.wait_event("permission.request")
    board = BoardProcess(place, "--socket", socket)
    page = looking.page
    page.goto(board.url)
    expect(looking.node("alone").locator(".state")).to_have_text("asking")
    page.get_by_role("button", name="Allow once").click()
    expect(looking.items("message")).to_contain_text("Went on.")
    page.get_by_role("switch", name="Controls").click()
    page.get_by_role("button", name="Cancel run…").click()
    page.get_by_role("button", name="Yes, cancel it").click()
    looking.link("Disconnected, trying again")
    assert run.finish() == 130
    looking.forgive("503")
    looking.forgive("ERR_")


def test_the_supervisor_serves_it_by_itself(browser: Browser, place: Place) -> None:
    """`avenor stable --http-debug` has the same page; after a restart its token is another, and is asked for."""
    token_file = place.path / "token"
    stable = Stable(place, "--http-debug", "127.0.0.1:0", "--http-token-file", str(token_file), "--log-format", "json")
    context = browser.new_context()
    looking = Looking(context, stable)
    looking.spawn(steps(say("Served by the supervisor.")))
    assert stable.process.stderr is not None
    lines = (json.loads(line) for line in iter(stable.process.stderr.readline, b""))
    url = next(line["url"] for line in lines if line["event"] == "http.listening")
    looking.page.goto(f"{url}#token={token_file.read_text().strip()}")
    looking.link("Live")
    expect(looking.items("message")).to_contain_text("Served by the supervisor.")
    looking.check()
    stable.shutdown()
    looking.link("Disconnected, trying again")
    address = url.removeprefix("http://").rstrip("/")
    Stable(place, "--http-debug", address, "--http-token-file", str(token_file))
    expect(looking.page.get_by_role("heading", name="This board needs its token")).to_be_visible()
    looking.page.get_by_label("Token").fill(token_file.read_text().strip())
    looking.page.get_by_role("button", name="Open the board").click()
    looking.link("Live")
    expect(looking.items("message")).to_contain_text("Served by the supervisor.")
    context.close()
