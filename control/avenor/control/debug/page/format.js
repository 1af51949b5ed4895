/* Times, sizes and states in words for people. */

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** `0 s`, `12 s`, `4 min 5 s`, `2 h 10 min`, `3 d 4 h`. */
export function duration(milliseconds) {
  const ms = Math.max(0, milliseconds);
  if (ms < MINUTE) return `${Math.floor(ms / SECOND)} s`;
  if (ms < HOUR) return `${Math.floor(ms / MINUTE)} min ${Math.floor((ms % MINUTE) / SECOND)} s`;
  if (ms < DAY) return `${Math.floor(ms / HOUR)} h ${Math.floor((ms % HOUR) / MINUTE)} min`;
  return `${Math.floor(ms / DAY)} d ${Math.floor((ms % DAY) / HOUR)} h`;
}

// Made once: that takes longer than using it a hundred times.
const TIME = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** The time of day of a Unix time in milliseconds, with the date if it is not today's. */
export function clock(ts) {
  const then = new Date(ts);
  const time = TIME.format(then);
  return then.toDateString() === new Date().toDateString() ? time : `${then.toLocaleDateString()} ${time}`;
}

/** `950`, `12.3k`, `1.2M`. */
export function count(number) {
  if (number < 1000) return String(number);
  if (number < 999_950) return `${(number / 1000).toFixed(1)}k`;
  return `${(number / 1_000_000).toFixed(1)}M`;
}

/** Tokens and cost of a `usage`; empty without one. */
export function usageText(usage) {
  if (!usage) return "";
  const cost = typeof usage.cost_usd === "number" ? ` · $${usage.cost_usd.toFixed(2)}` : "";
  return `${count(usage.total_tokens ?? 0)} tokens${cost}`;
}

const OUTCOMES = { DONE: "done", FAILED: "failed", BLOCKED: "blocked", TIMEOUT: "timed out", KILLED: "cancelled" };
const AT = new Set(["thinking", "working", "waiting"]);

/**
 * What a runtime is at, in one word of the board's: asking, thinking, working, waiting, retrying, idle, queued,
 * starting, done, failed, blocked, timed out, cancelled.
 */
export function stateOf(snapshot) {
  if (snapshot.status === "ended") return OUTCOMES[snapshot.outcome] ?? "failed";
  if (snapshot.permissions.length > 0) return "asking";
  if (snapshot.status !== "running") return snapshot.status;
  if (snapshot.turn_state === "retrying") return "retrying";
  return AT.has(snapshot.phase) ? snapshot.phase : "working";
}

/** How a runtime is called: its label, else its id. */
export const nameOf = (snapshot) => snapshot.label || idOf(snapshot);

/** What the server calls it; a run of its own, without a supervisor, has only a run id. */
export const idOf = (snapshot) => snapshot.runtime_id || snapshot.run_id;
