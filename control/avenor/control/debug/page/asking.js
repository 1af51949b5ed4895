/* The permission requests of all runtimes, with a button for each option. */

import { byId, h, keyed, setText } from "./dom.js";
import { duration, idOf, nameOf } from "./format.js";
import { say } from "./say.js";
import { ask } from "./steps.js";
import { head, plain } from "./text.js";

const INPUT_CHARS = 8000;

/** The cards. `api` answers; `choose(id)` shows the runtime that asks. */
export class Asking {
  #api;
  #choose;
  #told = null;

  constructor(api, choose) {
    this.#api = api;
    this.#choose = choose;
  }

  /** Draws `requests`, as the store has them, and tells of those that are new. */
  draw(requests, now) {
    const hadFocus = byId("asks").contains(document.activeElement);
    const keyOf = ({ snapshot, permission }) => `${idOf(snapshot)} ${permission.request_id}`;
    keyed(
      byId("asks"),
      requests,
      keyOf,
      (request) => this.#card(request),
      (card, request) => update(card, request, now),
    );
    byId("asking").hidden = byId("skip-asks").hidden = requests.length === 0;
    if (hadFocus && !byId("asks").contains(document.activeElement)) focusNext();
    this.#tell(requests, keyOf);
  }

  #tell(requests, keyOf) {
    const keys = new Set(requests.map(keyOf));
    const isNew = (request) => this.#told === null || !this.#told.has(keyOf(request));
    const fresh = requests.filter(isNew);
    this.#told = keys;
    if (fresh.length === 1) say(`${whoOf(fresh[0])} asks for permission: ${questionOf(fresh[0].permission)}`);
    else if (fresh.length > 1) say(`${fresh.length} new permission requests`);
  }

  #card(request) {
    const { snapshot, permission, input } = request;
    const line = h("p", { class: "refused", role: "alert" });
    const options = h("div", { class: "options", role: "group", "aria-label": `Answers to ${questionOf(permission)}` });
    const message = h("input", {
      type: "text",
      autocomplete: "off",
      "aria-label": "A word to the agent, with the answer",
    });
    const state = { force: false };
    for (const option of permission.options) {
      const answer = async () => {
        const call = () =>
          this.#api.answer(snapshot.runtime_id, permission.request_id, option.optionId, message.value, state.force);
        const { answer: given, owner } = await ask(options, line, call);
        if (given) say(`Answered: ${option.name}`);
        if (owner && !state.force) {
          state.force = true;
          line.append(" Press again to take it over.");
        }
      };
      options.append(
        h(
          "button",
          { type: "button", class: toneOf(option.kind), on: { click: answer } },
          option.name || option.optionId,
        ),
      );
    }
    return h(
      "li",
      { class: "ask" },
      h(
        "p",
        { class: "from" },
        h(
          "button",
          { class: "link-like", type: "button", on: { click: () => this.#choose(idOf(snapshot)) } },
          whoOf(request),
        ),
        h("span", { class: "chip" }, permission.tool),
        h("span", { class: "soft ago" }),
      ),
      h("p", { class: "question" }, questionOf(permission)),
      inputDetails(input, questionOf(permission)),
      h(
        "div",
        { class: "answer" },
        options,
        h("details", { class: "word" }, h("summary", {}, "Say something with the answer"), message),
      ),
      line,
    );
  }
}

function update(card, { permission }, now) {
  setText(card.querySelector(".ago"), `for ${duration(now - permission.requested_at)}`);
}

const questionOf = (permission) => permission.question || permission.tool;

/** The runtime that asks, and the phase. */
function whoOf({ snapshot, permission }) {
  const phase = snapshot.phases.find((each) => each.session_id && each.session_id === permission.session_id);
  return phase ? `${nameOf(snapshot)} › ${phase.name}` : nameOf(snapshot);
}

/** What the question does not say yet of what the tool was given. */
function inputDetails(input, question) {
  const values = typeof input === "object" && input !== null ? Object.values(input) : [input];
  if (values.every((value) => question.includes(plain(value)))) return null;
  const text = plain(input);
  return h(
    "details",
    { class: "input" },
    h("summary", {}, "What the tool was given"),
    h("pre", { tabindex: "0" }, head(text, INPUT_CHARS)),
  );
}

function toneOf(kind) {
  if (kind === "allow_once") return "primary";
  return String(kind).startsWith("allow") ? "plain" : "danger";
}

/** Where the keyboard goes when the card that it was in is gone: to the next request, else to the transcript. */
function focusNext() {
  const next = byId("asks").querySelector(".options button");
  (next ?? byId("transcript")).focus();
}
