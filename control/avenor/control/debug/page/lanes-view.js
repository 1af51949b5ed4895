/* Draws the time line. A lane is a button too: it shows only what was said there. */

import { byId, h, keyed, setAttribute, setText } from "./dom.js";
import { duration } from "./format.js";

const WORDS = {
  waiting: "waiting",
  thinking: "thinking",
  working: "working",
  asking: "asking",
  retrying: "retrying",
  starting: "starting",
  done: "done",
};
// Narrower ones are drawn as part of the one before, or there would be thousands of elements.
const LEAST_PERCENT = 0.3;
const STEPS_SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400];
const LEAST_SPAN_MS = 1000;

/** Writes the legend; once. */
export function drawLegend() {
  const states = ["thinking", "working", "waiting", "asking", "retrying", "done", "failed"];
  byId("legend").append(
    ...states.map((state) => h("li", { data: { state } }, h("i", { "aria-hidden": "true" }), state)),
  );
}

/**
 * Draws the lanes.
 *
 * @param {Lanes} model
 * @param {string} fallback - the name of the lane of a run without phases
 * @param {string|null} chosen - the lane whose transcript is shown; null shows all
 * @param {number} now
 * @param {function(string): void} choose - called with the name of a lane that is pressed
 */
export function drawLanes(model, fallback, chosen, now, choose) {
  const from = model.from ?? now;
  const to = Math.max(model.to ?? now, from + LEAST_SPAN_MS);
  const make = ({ lane }) => makeLane(lane, choose);
  keyed(
    byId("lanes"),
    model.tree(),
    ({ lane }) => `lane ${lane.name}`,
    make,
    (element, { lane, level, title }) => {
      const [button, track, word] = element.children;
      setText(button.firstElementChild, title || fallback);
      setText(button.lastElementChild, lane.kind ?? "");
      button.style.setProperty("--level", Math.min(level, 4));
      setAttribute(button, "aria-label", level > 0 ? `${lane.name} ${lane.kind ?? ""}` : null);
      setAttribute(button, "aria-pressed", lane.name === chosen);
      button.disabled = model.lanes.length < 2;
      element.dataset.state = lane.state;
      setText(word, stateText(lane, now));
      setAttribute(track, "aria-label", spoken(lane, now));
      drawSegments(track, lane, { from, to, now });
    },
  );
  drawAxis(from, to);
}

function makeLane(lane, choose) {
  return h(
    "li",
    { class: "lane" },
    h(
      "button",
      { class: "who", type: "button", title: `Only what ${lane.name} said`, on: { click: () => choose(lane.name) } },
      h("span", { class: "name" }),
      h("span", { class: "soft kind" }),
    ),
    h("div", { class: "track", role: "img" }),
    h("span", { class: "at" }),
  );
}

function drawSegments(track, lane, { from, to, now }) {
  const percent = (ts) => ((ts - from) / (to - from)) * 100;
  const drawn = [];
  for (const segment of lane.segments) {
    const [left, right] = [percent(segment.from), percent(segment.to ?? Math.max(now, segment.from))];
    const last = drawn.at(-1);
    const adjoins = last && left - last.right < LEAST_PERCENT;
    if (adjoins && right - left < LEAST_PERCENT && segment.state !== "asking" && segment.mark === null)
      last.right = right;
    else drawn.push({ ...segment, left, right, isOpen: segment.to === null });
  }
  keyed(
    track,
    drawn.map((one, index) => ({ ...one, index })),
    (one) => one.index,
    () => h("i"),
    (element, one) => {
      element.dataset.state = one.state;
      element.classList.toggle("open", one.isOpen);
      element.style.left = `${one.left}%`;
      element.style.width = `${Math.max(one.right - one.left, 0)}%`;
      setText(element, one.mark !== null && one.right - one.left > 2 ? one.mark : "");
      setAttribute(element, "title", `${WORDS[one.state]} ${duration((one.to ?? now) - one.from)}`);
    },
  );
}

function stateText(lane, now) {
  const last = lane.segments.at(-1);
  if (lane.isOver || !last) return lane.state;
  return `${lane.state} ${duration(now - last.from)}`;
}

/** The track in words: how long it was at what. */
function spoken(lane, now) {
  const spent = new Map();
  for (const { state, from, to } of lane.segments) spent.set(state, (spent.get(state) ?? 0) + (to ?? now) - from);
  const parts = [...spent].filter(([, ms]) => ms >= 1000).map(([state, ms]) => `${WORDS[state]} ${duration(ms)}`);
  return [lane.isOver ? lane.state : `now ${lane.state}`, ...parts].join(", ");
}

function drawAxis(from, to) {
  const seconds = (to - from) / 1000;
  const most = byId("axis").clientWidth < 420 ? 3 : 6;
  const step = STEPS_SECONDS.find((each) => seconds / each <= most) ?? Math.ceil(seconds / most / 86400) * 86400;
  const ticks = [];
  for (let at = 0; at <= seconds; at += step) ticks.push(at);
  keyed(
    byId("axis"),
    ticks,
    (at) => at,
    () => h("span"),
    (element, at) => {
      element.style.left = `${(at / seconds) * 100}%`;
      element.classList.toggle("last", at / seconds > 0.93);
      setText(element, at === 0 ? "0" : short(at));
    },
  );
}

/** `30 s`, `2 min`, `1 h`, as the steps are. */
function short(seconds) {
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600)
    return seconds % 60
      ? `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`
      : `${seconds / 60} min`;
  return seconds % 3600 ? duration(seconds * 1000) : `${seconds / 3600} h`;
}
