/*
 * The time line of a run: a lane for each phase, or one for a run without phases, cut into segments of what its agent was
 * at: starting waiting thinking working asking retrying done.
 */

import { laneOf } from "./transcript.js";

// A phase begins, its session and its turn: each tells another state, milliseconds apart.
const MOMENT_MS = 50;

const STATUSES = new Set(["waiting", "thinking", "working", "done"]);

/** The events that change a time line. */
export const TIMELY = new Set([
  "run.start",
  "run.end",
  "run.resumed",
  "session.start",
  "session.end",
  "turn.start",
  "turn.end",
  "agent.status",
  "permission.request",
  "permission.response",
  "avenor.phase.start",
  "avenor.phase.end",
  "avenor.retry",
]);

/**
 * The lanes, in the order in which they began. Each has `name`, `kind` (of its phase), `segments` (state, from, to, mark:
 * `to` is null while it lasts), `state` (of the last segment, or what it came to: done failed aborted skipped cancelled)
 * and `isOver`.
 */
export class Lanes {
  lanes = [];
  from = null;
  to = null;
  #byName = new Map();
  // Requests that a lane's agent waits for, so that it goes on asking until the last of them is answered.
  #asked = new Map();

  /** Takes events in their order. */
  add(events) {
    for (const event of events) {
      if (!TIMELY.has(event.event)) continue;
      this.from ??= event.ts;
      const take = TAKES[event.event];
      if (take) take(this, event);
    }
  }

  /** The lane of an event, made if it is new. */
  lane(event, name = laneOf(event)) {
    let lane = this.#byName.get(name);
    if (!lane) {
      lane = { name, kind: event.phase_kind ?? event.kind ?? null, segments: [], state: "starting", isOver: false };
      this.#byName.set(name, lane);
      this.lanes.push(lane);
    }
    return lane;
  }

  /** Begins a segment, unless the lane is at that already; what lasted but a moment becomes what follows it. */
  enter(lane, state, ts, mark = null) {
    const last = lane.segments.at(-1);
    if (last && last.to === null) {
      if (last.state === state && mark === null) return;
      if (ts - last.from < MOMENT_MS && last.state !== "asking") {
        last.state = lane.state = state;
        last.mark = mark ?? last.mark;
        return;
      }
      last.to = ts;
    }
    lane.segments.push({ state, from: ts, to: null, mark });
    lane.state = state;
    lane.isOver = false;
  }

  /** Ends the lane's last segment. */
  leave(lane, state, ts) {
    const last = lane.segments.at(-1);
    if (last && last.to === null) last.to = ts;
    lane.state = state;
    lane.isOver = true;
  }

  /** Ends all that lasts. */
  leaveAll(state, ts) {
    for (const lane of this.lanes) if (!lane.isOver) this.leave(lane, state, ts);
    this.#asked.clear();
  }

  /** The lanes, nested ones below the phase that they are in: `{lane, level, title}`, the title without that phase. */
  tree() {
    const names = this.lanes.map((lane) => lane.name);
    const inside = (name, outer) => name.startsWith(`${outer}/`);
    const parentOf = (name) =>
      names
        .filter((outer) => inside(name, outer))
        .reduce((one, other) => (other.length > one.length ? other : one), "");
    const parents = new Map(names.map((name) => [name, parentOf(name)]));
    const walk = (parent, level) =>
      this.lanes
        .filter((lane) => parents.get(lane.name) === parent)
        .flatMap((lane) => {
          const row = { lane, level, title: parent ? lane.name.slice(parent.length + 1) : lane.name };
          return [row, ...(lane.name ? walk(lane.name, level + 1) : [])];
        });
    return walk("", 0);
  }

  /** Notes a request, or that it is settled; how many are open in that lane. */
  ask(lane, requestId, isOpen) {
    const open = this.#asked.get(lane.name) ?? new Set();
    this.#asked.set(lane.name, open);
    if (isOpen) open.add(requestId);
    else open.delete(requestId);
    return open.size;
  }

  /** Whether its agent waits for an answer. */
  isAsking = (lane) => (this.#asked.get(lane.name)?.size ?? 0) > 0;
}

function phaseStart(lanes, event) {
  const mark =
    event.iteration > 1 || event.attempt > 1 ? String(event.attempt > 1 ? event.attempt : event.iteration) : null;
  lanes.enter(lanes.lane(event), "working", event.ts, mark);
}

function phaseEnd(lanes, event) {
  const lane = lanes.lane(event);
  if (event.retried) lanes.enter(lane, "retrying", event.ts);
  else lanes.leave(lane, cameTo(event), event.ts);
  for (const skipped of event.skips ?? []) {
    const name = [event.path, skipped].filter(Boolean).join("/");
    const member = lanes.lane({ ...event, kind: "team" }, name);
    lanes.leave(member, "skipped", event.ts);
  }
}

function cameTo(event) {
  if (event.abort_marker) return "aborted";
  if (event.exit_code === 0) return "done";
  return event.exit_code === 130 ? "cancelled" : "failed";
}

function status(lanes, event) {
  const lane = lanes.lane(event);
  if (STATUSES.has(event.phase) && !lanes.isAsking(lane)) lanes.enter(lane, event.phase, event.ts);
}

function request(lanes, event) {
  const lane = lanes.lane(event);
  lanes.ask(lane, event.request_id, true);
  lanes.enter(lane, "asking", event.ts);
}

function response(lanes, event) {
  const lane = lanes.lane(event);
  if (lanes.ask(lane, event.request_id, false) === 0) lanes.enter(lane, "working", event.ts);
}

function turnEnd(lanes, event) {
  const lane = lanes.lane(event);
  if (!lane.isOver) lanes.enter(lane, "done", event.ts);
}

const OUTCOMES = { DONE: "done", KILLED: "cancelled", BLOCKED: "aborted" };

const TAKES = {
  "session.start": (lanes, event) => {
    const lane = lanes.lane(event);
    if (!lanes.isAsking(lane)) lanes.enter(lane, "starting", event.ts);
  },
  "turn.start": (lanes, event) => lanes.enter(lanes.lane(event), "thinking", event.ts),
  "turn.end": turnEnd,
  "agent.status": status,
  "permission.request": request,
  "permission.response": response,
  "avenor.phase.start": phaseStart,
  "avenor.phase.end": phaseEnd,
  "avenor.retry": (lanes, event) => lanes.enter(lanes.lane(event), "retrying", event.ts),
  "run.end": (lanes, event) => {
    lanes.to = event.ts;
    lanes.leaveAll(OUTCOMES[event.status] ?? "failed", event.ts);
  },
};
