/*
 * What is known of each runtime. The server's snapshot is the truth and is asked for after every event that begins or
 * ends something; what changes often in between is folded here.
 */

import { idOf } from "./format.js";

// Several of these come together, and one look is enough for all.
const SETTLE_MS = 100;
// More at once are asked for with the whole list.
const SINGLE_LOOKS = 6;

const LOOK_AGAIN = new Set([
  "run.start",
  "run.resumed",
  "run.ending",
  "run.end",
  "session.start",
  "session.end",
  "prompt.queued",
  "turn.start",
  "turn.end",
  "avenor.phase.start",
  "avenor.phase.end",
  "avenor.loop.start",
  "avenor.loop.end",
  "avenor.team.start",
  "avenor.team.end",
  "avenor.retry",
  "permission.request",
  "permission.response",
]);

/** The runtimes by id; `changed` is called after each change. */
export class Store {
  runtimes = new Map();
  #api;
  #changed;
  #stale = new Set();
  #timer = 0;
  // What tools in permission requests were given; only the event has it, and snapshots do not.
  #inputs = new Map();

  constructor(api, changed) {
    this.#api = api;
    this.#changed = changed;
  }

  /** Takes the server's list. */
  replace(snapshots) {
    this.runtimes = new Map(snapshots.map((snapshot) => [idOf(snapshot), snapshot]));
    this.#stale.clear();
    const pending = new Set(this.permissions().map(({ permission }) => permission.request_id));
    for (const requestId of this.#inputs.keys()) if (!pending.has(requestId)) this.#inputs.delete(requestId);
    this.#changed();
  }

  /** Takes an event as it comes. */
  apply(event) {
    const id = event.runtime_id ?? event.run_id;
    const known = this.runtimes.get(id);
    if (event.event === "permission.request") this.#inputs.set(event.request_id, event.input);
    if (!known) {
      this.#look(id);
      return;
    }
    if (event.seq <= known.latest_seq) return;
    const missed = event.seq > known.latest_seq + 1;
    fold(known, event);
    if (missed || LOOK_AGAIN.has(event.event)) this.#look(id);
    this.#changed();
  }

  /** All that wait for an answer, the oldest first: `{snapshot, permission, input}`. */
  permissions() {
    const all = [...this.runtimes.values()].flatMap((snapshot) =>
      snapshot.permissions.map((permission) => ({
        snapshot,
        permission,
        input: this.#inputs.get(permission.request_id),
      })),
    );
    return all.sort((one, other) => one.permission.requested_at - other.permission.requested_at);
  }

  /** Asks for everything, for what no event tells: runtimes that are queued or were pruned, and who owns them. */
  async refresh() {
    const snapshots = await this.#api.list();
    const older = snapshots.some((one) => one.latest_seq < (this.runtimes.get(idOf(one))?.latest_seq ?? 0));
    if (!older) this.replace(snapshots); // else events have overtaken it; the next one will do
  }

  #look(id) {
    this.#stale.add(id);
    this.#timer ||= setTimeout(() => this.#lookNow(), SETTLE_MS);
  }

  async #lookNow() {
    this.#timer = 0;
    const ids = [...this.#stale];
    this.#stale.clear();
    try {
      if (ids.length > SINGLE_LOOKS) await this.refresh();
      else await Promise.all(ids.map((id) => this.#lookAt(id)));
    } catch {
      /* the connection's own trouble is told where it is kept; after it, everything is asked for again */
    }
  }

  async #lookAt(id) {
    const runtimeId = this.runtimes.get(id)?.runtime_id ?? (this.#isAlone() ? null : id);
    const snapshot = await this.#api.status(runtimeId);
    const known = this.runtimes.get(id);
    if (known && snapshot.latest_seq < known.latest_seq) {
      this.#look(id);
      return;
    }
    this.runtimes.set(idOf(snapshot), snapshot);
    const parent = this.runtimes.get(snapshot.parent_id);
    if (parent && !parent.children.includes(snapshot.runtime_id)) parent.children.push(snapshot.runtime_id);
    this.#changed();
  }

  /** Whether this is the socket of a run, which has no ids. */
  #isAlone() {
    return this.runtimes.size === 1 && [...this.runtimes.values()][0].runtime_id === null;
  }
}

/** Brings a snapshot up to date with an event, as far as it must be before the next look at the server. */
function fold(snapshot, event) {
  snapshot.latest_seq = event.seq;
  snapshot.updated_at = event.ts;
  if (event.event === "agent.status") {
    snapshot.phase = event.phase;
    snapshot.phase_label = event.label ?? null;
  } else if (event.event === "turn.start") {
    snapshot.status = "running";
    snapshot.turn_state = "running";
  } else if (event.event === "turn.end") {
    if (event.usage) snapshot.usage = sum(snapshot.usage, event.usage);
  } else if (event.event === "permission.request") {
    const others = snapshot.permissions.filter((one) => one.request_id !== event.request_id);
    snapshot.permissions = [...others, { ...event, requested_at: event.ts }];
  } else if (event.event === "permission.response") {
    snapshot.permissions = snapshot.permissions.filter((one) => one.request_id !== event.request_id);
  } else if (event.event === "run.end") {
    snapshot.permissions = [];
    snapshot.status = "ended";
    snapshot.outcome = event.status;
    snapshot.ended_at = event.ts;
  }
}

function sum(one, other) {
  const total = { ...one };
  for (const [name, value] of Object.entries(other)) {
    if (typeof value === "number") total[name] = (total[name] ?? 0) + value;
  }
  return total;
}
