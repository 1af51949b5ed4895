/* What is known of the selected runtime, and the controls that the switch shows. */

import { byId, h, keyed, setAttribute, setText } from "./dom.js";
import { clock, count, duration, idOf, nameOf, stateOf } from "./format.js";
import { say } from "./say.js";
import { ask } from "./steps.js";

/** Draws name, state and facts of a runtime. */
export function drawDetail(snapshot, now) {
  const state = stateOf(snapshot);
  setText(byId("detail-name"), nameOf(snapshot));
  setText(byId("detail-state"), state);
  byId("detail").dataset.state = state;
  setText(byId("detail-since"), sinceText(snapshot, now));
  const why = whyText(snapshot);
  setText(byId("detail-why"), why);
  byId("detail-why").hidden = why === "";
  const facts = factsOf(snapshot).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  keyed(
    byId("facts"),
    facts,
    ([name]) => name,
    ([name]) => h("div", {}, h("dt", {}, name), h("dd", {})),
    (element, [, value]) => {
      setText(element.lastElementChild, String(value));
      setAttribute(element.lastElementChild, "title", String(value));
    },
  );
}

function sinceText(snapshot, now) {
  if (!snapshot.started_at) return "";
  if (snapshot.ended_at) return `took ${duration(snapshot.ended_at - snapshot.started_at)}`;
  return `for ${duration(now - snapshot.started_at)}`;
}

function whyText(snapshot) {
  const parts = [];
  if (snapshot.reason) parts.push(snapshot.reason);
  else if (snapshot.outcome && snapshot.outcome !== "DONE") parts.push(snapshot.stop_reason ?? "");
  if (snapshot.phase_label && snapshot.status === "running") parts.push(snapshot.phase_label);
  if (snapshot.turn_state === "retrying")
    parts.push(`attempt ${snapshot.retry_attempt} of ${snapshot.max_retries + 1}`);
  if (snapshot.left_processes.length > 0) parts.push(`could not be ended: ${snapshot.left_processes.join(", ")}`);
  return parts.filter(Boolean).join(" · ");
}

function factsOf(snapshot) {
  const { usage } = snapshot;
  return [
    ["Id", idOf(snapshot)],
    ["Kind", snapshot.kind],
    ["Agent", [snapshot.backend, snapshot.agent, snapshot.model].filter(Boolean).join(" · ")],
    ["Began", snapshot.started_at ? clock(snapshot.started_at) : ""],
    [
      "Tokens",
      usage ? `${count(usage.total_tokens)} (${count(usage.input_tokens)} in, ${count(usage.output_tokens)} out)` : "",
    ],
    ["Cost", typeof usage?.cost_usd === "number" ? `$${usage.cost_usd.toFixed(2)}` : ""],
    ["Prompts waiting", snapshot.queued_prompts || ""],
    ["Owner", snapshot.owner],
    ["Started by", snapshot.parent_id],
    ["Directory", snapshot.dir],
  ];
}

/** Cancel and prompt for one runtime at a time; made anew for each. */
export class Steering {
  #api;
  #runtimeId = null;
  #id = null;

  constructor(api) {
    this.#api = api;
  }

  /** Shows the controls of this runtime if they are switched on; `snapshot` may be null. */
  draw(snapshot, isOn) {
    const group = byId("steer");
    group.hidden = !isOn || snapshot === null || snapshot.status === "ended";
    if (snapshot === null || this.#id === idOf(snapshot)) return;
    this.#id = idOf(snapshot);
    this.#runtimeId = snapshot.runtime_id;
    group.replaceChildren(this.#prompt(), this.#cancel(nameOf(snapshot)));
  }

  #prompt() {
    const text = h("textarea", { id: "prompt-text", rows: "2", required: "", spellcheck: "true" });
    const line = h("p", { class: "refused", role: "alert" });
    const form = h(
      "form",
      { class: "prompt-form" },
      h("label", { for: "prompt-text" }, "Prompt"),
      text,
      h("button", { class: "primary", type: "submit" }, "Send prompt"),
      line,
    );
    text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send(form, text, line);
    });
    return form;
  }

  async #send(form, text, line) {
    const runtimeId = this.#runtimeId;
    const { answer, owner } = await ask(form, line, () =>
      this.#api.prompt(runtimeId, text.value, form.boardForce ?? false),
    );
    if (answer) {
      text.value = "";
      form.boardForce = false;
      say(answer.queued > 0 ? "The prompt waits for its turn." : "The prompt was sent.");
    } else takeOver(form, owner, line);
  }

  #cancel(name) {
    const line = h("p", { class: "refused", role: "alert" });
    const group = h("div", { class: "cancel" });
    const start = h("button", { class: "danger", type: "button" }, "Cancel run…");
    const sure = h("button", { class: "danger solid", type: "button" }, "Yes, cancel it");
    const keep = h("button", { class: "quiet", type: "button" }, "Let it run");
    const question = h(
      "div",
      { class: "sure", hidden: true },
      h("p", {}, `End ${name} and everything that it started?`),
      sure,
      keep,
    );
    const show = (isAsking) => {
      question.hidden = !isAsking;
      start.hidden = isAsking;
      (isAsking ? keep : start).focus();
    };
    start.addEventListener("click", () => show(true));
    keep.addEventListener("click", () => show(false));
    question.addEventListener("keydown", (event) => event.key === "Escape" && show(false));
    sure.addEventListener("click", async () => {
      const runtimeId = this.#runtimeId;
      const { answer, owner } = await ask(group, line, () => this.#api.cancel(runtimeId, group.boardForce ?? false));
      if (answer) {
        say(`${name} was cancelled.`);
        byId("transcript").focus();
      } else takeOver(group, owner, line);
    });
    group.append(start, question, line);
    return group;
  }
}

/** After a refusal because another client owns the runtime: the next press takes it over. */
function takeOver(element, owner, line) {
  if (!owner || element.boardForce) return;
  element.boardForce = true;
  line.append(" Press again to take it over.");
}
