/* Puts the parts of the board together: what the server says goes into models, and models are drawn once a frame. */

import { Api, keepToken, takeToken } from "./api.js";
import { Asking } from "./asking.js";
import { Steering, drawDetail } from "./detail.js";
import { byId, setAttribute, setText } from "./dom.js";
import { stateOf } from "./format.js";
import { drawLegend } from "./lanes-view.js";
import { Link } from "./link.js";
import { Selection } from "./selection.js";
import { Store } from "./store.js";
import { Tree } from "./tree.js";

// Elapsed times are shown in seconds.
const TICK_MS = 1000;
// What no event tells: a runtime that is queued, one that was pruned, an owner that left.
const REFRESH_MS = 10_000;

const api = new Api(takeToken());
const store = new Store(api, draw);
const selection = new Selection(api, draw);
const tree = new Tree(choose, draw);
const asking = new Asking(api, choose);
const steering = new Steering(api);
const link = new Link(api, { state: showLink, list: takeList, event: takeEvent });

let isLive = false;
let hasList = false;
let isSteering = false;
let frame = 0;

function takeList(snapshots) {
  hasList = true;
  store.replace(snapshots);
  selection.refresh(store.runtimes);
}

function takeEvent(event) {
  store.apply(event);
  selection.take(event);
}

function choose(id) {
  const snapshot = store.runtimes.get(id);
  if (snapshot) selection.choose(snapshot);
}

/** Draws soon: everything that changes within a frame is drawn at once. */
function draw() {
  if (document.hidden) drawTitle(); // there are no frames then, and the title is all that is seen
  frame ||= requestAnimationFrame(drawNow);
}

function drawNow() {
  frame = 0;
  if (!hasList) return;
  const now = Date.now();
  const { runtimes } = store;
  if (!runtimes.has(selection.id)) selection.choose(firstToShow(runtimes));
  const snapshot = runtimes.get(selection.id) ?? null;
  byId("nothing").hidden = runtimes.size > 0;
  byId("panes").hidden = runtimes.size === 0;
  asking.draw(store.permissions(), now);
  tree.draw(runtimes, selection.id, now);
  steering.draw(snapshot, isSteering);
  if (snapshot) {
    drawDetail(snapshot, now);
    selection.draw(snapshot, now);
  }
  drawTally(runtimes);
}

/** What to show while nothing was chosen: who asks, else who runs, else the newest. */
function firstToShow(runtimes) {
  const newest = [...runtimes.values()].toReversed();
  return (
    newest.find((one) => one.permissions.length > 0) ??
    newest.find((one) => one.status !== "ended") ??
    newest[0] ??
    null
  );
}

function drawTally(runtimes) {
  const states = [...runtimes.values()].map(stateOf);
  const asks = states.filter((state) => state === "asking").length;
  const live = [...runtimes.values()].filter((one) => one.status !== "ended").length;
  drawTitle();
  setText(
    byId("tally"),
    [`${live} live`, asks ? `${asks} asking` : "", `${runtimes.size - live} ended`].filter(Boolean).join(" · "),
  );
}

function drawTitle() {
  const asks = store.permissions().length;
  const title = asks ? `(${asks}) avenor board` : "avenor board";
  if (document.title !== title) document.title = title;
}

function showLink(state, seconds) {
  isLive = state === "live";
  const words = {
    connecting: "Connecting…",
    live: "Live",
    waiting: "Disconnected, trying again",
    unauthorised: "No access",
  };
  byId("link").dataset.state = state;
  // A try that fails at once must not flicker, and must not be read out again and again.
  if (state !== "connecting" || !hasList) setText(byId("link"), words[state]);
  byId("again").hidden = state !== "waiting" || seconds < 1;
  document.body.classList.toggle("stale", hasList && !isLive && state !== "connecting");
  byId("gate").hidden = state !== "unauthorised";
  byId("board").hidden = state === "unauthorised" || !hasList;
  if (state === "unauthorised") {
    if (api.token)
      setText(byId("gate-why"), "The server did not take the token. It is new each time the server starts.");
    byId("gate-token").focus();
  }
  if (isLive) draw();
}

function listen() {
  byId("gate").addEventListener("submit", (event) => {
    event.preventDefault();
    api.token = byId("gate-token")
      .value.trim()
      .replace(/^.*#token=/, "");
    byId("gate-token").value = "";
    keepToken(api.token);
    link.connect();
  });
  byId("again").addEventListener("click", () => link.connect());
  byId("controls").addEventListener("click", () => {
    isSteering = !isSteering;
    setAttribute(byId("controls"), "aria-checked", isSteering);
    setText(byId("controls").querySelector("b"), isSteering ? "on" : "off");
    draw();
  });
  addEventListener("hashchange", () => {
    if (!location.hash.startsWith("#token=")) return;
    api.token = takeToken();
    link.connect();
  });
  addEventListener("resize", draw);
  document.addEventListener("visibilitychange", draw);
  setInterval(() => document.hidden || draw(), TICK_MS);
  setInterval(() => isLive && store.refresh().catch(() => {}), REFRESH_MS); // a break is noticed by the link
}

drawLegend();
listen();
link.connect();
