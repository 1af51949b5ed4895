/* Draws the transcript, and stays at its end for as long as nobody scrolls away. */

import { byId, h, keyed, setText } from "./dom.js";
import { clock } from "./format.js";
import { contentText, head, plain } from "./text.js";

// So near to the end is at the end: a finger does not hit it exactly.
const END_PIXELS = 48;
// Folded details of a tool beyond this would slow the page down, and nobody reads them here.
const DETAIL_CHARS = 20_000;

/** The transcript's element. `older()` is called for more at the top and answers a promise. */
export class TranscriptView {
  #box = byId("transcript");
  #isAtEnd = true;

  constructor(older) {
    this.#box.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    // Who unfolds something reads it: what is below it is not the end any more.
    this.#box.addEventListener("toggle", () => this.#scrolled(), { capture: true });
    new ResizeObserver(() => this.#isAtEnd && this.toEnd()).observe(this.#box);
    byId("newest").addEventListener("click", () => {
      this.toEnd();
      this.#box.focus();
    });
    byId("older").addEventListener("click", async () => {
      const button = byId("older");
      button.disabled = true;
      try {
        await this.#keepingPlace(older);
      } finally {
        button.disabled = false;
        if (button.hidden) this.#box.focus();
      }
    });
  }

  /** Whether the newest is in sight, so that what is at the top may go. */
  get isAtEnd() {
    return this.#isAtEnd;
  }

  /** Scrolls to the newest, and stays there. */
  toEnd() {
    this.#isAtEnd = true;
    this.#box.scrollTop = this.#box.scrollHeight;
    byId("newest").hidden = true;
  }

  /**
   * Draws the items.
   *
   * @param {Transcript} transcript
   * @param {string|null} lane - only of this lane; null shows all
   * @param {boolean} hasOlder
   * @param {boolean} isReady - whether everything there is has been read
   */
  draw(transcript, lane, hasOlder, isReady) {
    const items = lane === null ? transcript.items : transcript.items.filter((item) => isOf(item, lane));
    this.#box.classList.toggle("one", lane !== null);
    keyed(byId("items"), items, (item) => item.key, make, update);
    byId("older").hidden = !hasOlder;
    byId("silence").hidden = items.length > 0 || !isReady;
    if (this.#isAtEnd) this.toEnd();
  }

  #scrolled() {
    const left = this.#box.scrollHeight - this.#box.scrollTop - this.#box.clientHeight;
    this.#isAtEnd = left < END_PIXELS;
    byId("newest").hidden = this.#isAtEnd;
  }

  async #keepingPlace(change) {
    this.#isAtEnd = false;
    const fromEnd = this.#box.scrollHeight - this.#box.scrollTop;
    await change();
    this.#box.scrollTop = this.#box.scrollHeight - fromEnd;
  }
}

const isOf = (item, lane) => item.lane === lane || item.lane.startsWith(`${lane}/`);

function make(item) {
  const element = h("li", { class: `item ${item.type}` });
  const heading = h(
    "div",
    { class: "by" },
    h("b", {}, HEADINGS[item.type]),
    ...laneTag(item),
    h("time", {}, clock(item.ts)),
  );
  element.append(...(BODIES[item.type] ?? textBody)(item, heading));
  return element;
}

const HEADINGS = {
  prompt: "Prompt",
  message: "Agent",
  thought: "Thought",
  user: "User",
  tool: "Tool",
  permission: "Permission",
  plan: "Plan",
  note: "",
};

const laneTag = (item) => (item.lane ? [h("span", { class: "lane-tag" }, item.lane)] : []);

function update(element, item) {
  if (element.boardVersion === item.version) return;
  element.boardVersion = item.version;
  (UPDATES[item.type] ?? updateText)(element, item);
}

const textBody = (_item, heading) => [heading, h("div", { class: "text" })];

// What scrolls by itself must be reached by the keyboard.
const SCROLLS = { tabindex: "0" };

function updateText(element, item) {
  const cut = item.cut > 0 ? `… ${item.cut} characters are left out here\n` : "";
  setText(element.querySelector(".text"), cut + item.text.replace(/\s+$/, ""));
}

const BODIES = {
  prompt: (_item, heading) => [heading, h("div", { class: "text", ...SCROLLS })],
  thought: (_item, heading) => [
    h("details", {}, h("summary", {}, heading, h("span", { class: "excerpt" })), h("div", { class: "text" })),
  ],
  tool: (_item, heading) => [
    h(
      "details",
      {},
      h("summary", {}, heading, h("span", { class: "excerpt" }), h("span", { class: "status" })),
      h("div", { class: "inside" }),
    ),
  ],
  permission: (_item, heading) => [heading, h("div", { class: "text" }), h("div", { class: "verdict" })],
  plan: (_item, heading) => [heading, h("ul", { class: "entries" })],
  note: (item) => [h("div", { class: `text ${item.tone}` }), ...laneTag(item), h("time", {}, clock(item.ts))],
};

const UPDATES = {
  thought: (element, item) => {
    setText(element.querySelector(".excerpt"), item.text.trim().split("\n")[0].slice(0, 160));
    updateText(element, item);
  },
  tool: updateTool,
  permission: (element, item) => {
    setText(element.querySelector(".text"), item.question);
    const verdict = element.querySelector(".verdict");
    element.classList.toggle("open", !item.answer);
    setText(verdict, item.answer ? verdictText(item) : "waiting for an answer");
  },
  plan: (element, item) => {
    const list = element.querySelector(".entries");
    list.replaceChildren(
      ...item.entries.map((entry) => {
        const status = plain(entry?.status) || "pending";
        return h("li", { data: { status } }, h("span", { class: "unseen" }, `${status}: `), entryText(entry));
      }),
    );
  },
};

const entryText = (entry) => (typeof entry?.content === "object" ? contentText(entry.content) : plain(entry?.content));

function updateTool(element, item) {
  const status = item.status ?? "pending";
  element.dataset.status = status;
  setText(element.querySelector(".excerpt"), item.title || item.id);
  setText(element.querySelector(".status"), [item.kind, status.replace("_", " ")].filter(Boolean).join(" · "));
  const parts = [
    ["Input", item.input],
    ["Output", item.output],
  ].filter(([, text]) => text);
  keyed(
    element.querySelector(".inside"),
    parts,
    ([name]) => name,
    makePart,
    (part, [, text]) => setText(part.lastElementChild, head(text, DETAIL_CHARS)),
  );
}

const makePart = ([name]) => h("div", { class: "part" }, h("span", { class: "soft" }, name), h("pre", SCROLLS));

function verdictText({ answer, options }) {
  const option = Array.isArray(options) ? options.find((each) => each?.optionId === answer.option_id) : null;
  const word = { allow: "allowed", reject: "rejected", cancelled: "cancelled" }[answer.kind] ?? plain(answer.kind);
  const by = { avenor: "automatically", control: "by a client", file: "through the file", cancel: "with the run" };
  const message = answer.message ? `: “${answer.message}”` : "";
  return `${word}${option?.name ? ` (${option.name})` : ""} ${by[answer.source] ?? plain(answer.source)}${message}`;
}
