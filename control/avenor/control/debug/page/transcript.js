/*
 * What was said and done, as items in the order in which they began. Chunks of a message and updates of a tool become one
 * item. Bounded: what is let go at the top can be read again from the log.
 */

import { contentText, head, plain } from "./text.js";

// Enough to read back some way without "older", and few enough to lay out at once.
const ITEMS = 400;
// What somebody who reads further up may have behind them before it is let go all the same.
const MOST_ITEMS = 2000;
// Of a message or output that grows beyond twice this, the end is kept; `avenor control result` has the whole reply.
const TEXT_CHARS = 16_000;

const NOTE_CHARS = 4000;

const SPOKEN = {
  "agent.message_chunk": "message",
  "agent.thought_chunk": "thought",
  "user.message_chunk": "user",
};

/** The name of the lane that an event belongs to: the phases around it, and its phase; empty in a run without phases. */
export function laneOf(event) {
  const phase = event.event === "agent.status" ? event.run_phase : event.phase;
  return [event.path, phase].filter(Boolean).join("/");
}

/**
 * The items of a runtime. Each has `key`, `type` (prompt message thought user tool permission plan note), `lane`, `ts`,
 * `from` (its first event), `version` (raised with each change), and what its type needs.
 */
export class Transcript {
  items = [];
  // Message or thought that the next chunk goes on, by lane and session.
  #open = new Map();
  #byKey = new Map();

  /** Takes events that come after all others. */
  add(events) {
    for (const event of events) this.#take(event);
  }

  /** Takes events that come before all others. */
  prepend(events) {
    const before = new Transcript();
    before.add(events);
    for (const item of before.items) {
      const later = this.#byKey.get(item.key);
      if (!later) continue;
      // It began in these events and goes on in ours.
      join(item, later);
      this.items.splice(this.items.indexOf(later), 1);
      for (const [speaker, open] of this.#open) if (open === later) this.#open.set(speaker, item);
    }
    for (const item of before.items) this.#byKey.set(item.key, item);
    this.items.unshift(...before.items);
  }

  /** Whether there are so many items that the oldest must go even while somebody reads them. */
  get isHuge() {
    return this.items.length > MOST_ITEMS;
  }

  /** Lets the oldest items go if there are too many; the `seq` before the first that is left, or null if none is. */
  trim() {
    if (this.items.length <= ITEMS * 1.25) return null;
    for (const item of this.items.splice(0, this.items.length - ITEMS)) this.#byKey.delete(item.key);
    return this.items[0].from - 1;
  }

  #take(event) {
    const type = SPOKEN[event.event];
    if (type) this.#speak(type, event);
    else {
      if (ENDS_MESSAGE.has(event.event)) this.#open.delete(speakerOf(event));
      TAKES[event.event]?.(this, event);
    }
  }

  #speak(type, event) {
    const speaker = speakerOf(event);
    const open = this.#open.get(speaker);
    const text = contentText(event.content);
    if (open && open.type === type && open.messageId === event.messageId) {
      open.text = clipped(open, open.text + text);
      open.version += 1;
      return;
    }
    const name = event.messageId ? `${speaker} ${type} ${event.messageId}` : `seq ${event.seq}`;
    const item = this.put(type, event, { messageId: event.messageId, text }, name);
    this.#open.set(speaker, item);
  }

  /** Adds an item, under a key that nothing has yet. */
  put(type, event, members, name = `seq ${event.seq}`) {
    const key = this.#byKey.has(name) ? `seq ${event.seq}` : name;
    const item = { key, type, lane: laneOf(event), ts: event.ts, from: event.seq, version: 0, cut: 0, ...members };
    this.items.push(item);
    this.#byKey.set(key, item);
    return item;
  }

  /** The item of that key, if it is here. */
  find(key) {
    return this.#byKey.get(key);
  }
}

const speakerOf = (event) => `${laneOf(event)} ${event.session_id ?? ""}`;

// As where markers are read: a chunk after one of these begins another message.
const ENDS_MESSAGE = new Set([
  "tool.call",
  "tool.call_update",
  "permission.request",
  "turn.start",
  "turn.end",
  "session.end",
  "avenor.phase.end",
  "run.end",
]);

function clipped(item, text) {
  if (text.length <= 2 * TEXT_CHARS) return text; // cutting at every chunk would copy all of it at every chunk
  const over = text.length - TEXT_CHARS;
  item.cut += over;
  return text.slice(over);
}

/** Makes `item`, the beginning, whole with `later`, its end. */
function join(item, later) {
  if (item.type === "tool") {
    for (const [name, value] of Object.entries(later)) {
      if (TOOL_MEMBERS.includes(name) && value !== undefined) item[name] = value;
    }
  } else if (later.cut > 0) {
    item.cut = item.text.length + later.cut;
    item.text = later.text;
  } else if (item.text !== undefined) item.text = clipped(item, item.text + later.text);
  if (later.answer) item.answer = later.answer;
  item.version += later.version + 1;
}

const TOOL_MEMBERS = ["title", "kind", "status", "input", "output"];

function tool(transcript, event) {
  const key = `${speakerOf(event)} tool ${event.toolCallId}`;
  const item = transcript.find(key) ?? transcript.put("tool", event, { id: plain(event.toolCallId) }, key);
  if (event.title !== undefined) item.title = plain(event.title);
  if (event.kind !== undefined && event.kind !== null) item.kind = plain(event.kind);
  if (event.status !== undefined && event.status !== null) item.status = plain(event.status);
  if (isFilled(event.rawInput)) item.input = plain(event.rawInput);
  const output = outputOf(event);
  if (output) item.output = clipped(item, output);
  item.version += 1;
}

const isFilled = (value) => value !== undefined && value !== null && Object.keys(Object(value)).length > 0;

/** What a tool has put out: its content, else its raw output. */
function outputOf(event) {
  const blocks = Array.isArray(event.content) ? event.content.map(blockText).filter(Boolean) : [];
  if (blocks.length > 0) return blocks.join("\n");
  return isFilled(event.rawOutput) ? plain(event.rawOutput) : "";
}

function blockText(block) {
  if (block?.type === "content") return contentText(block.content);
  if (block?.type === "diff") return diffText(block);
  return `[${plain(block?.type) || "?"}]`;
}

function diffText({ path, oldText, newText }) {
  const marked = (text, mark) =>
    text
      ? text
          .replace(/\n$/, "")
          .split("\n")
          .map((line) => `${mark} ${line}`)
      : [];
  return [plain(path), ...marked(plain(oldText), "−"), ...marked(plain(newText), "+")].join("\n");
}

function permission(transcript, event) {
  const key = `permission ${event.request_id}`;
  if (transcript.find(key)) return; // another resolver has it now
  transcript.put(
    "permission",
    event,
    { question: plain(event.question) || plain(event.tool), options: event.options },
    key,
  );
}

function answer(transcript, event) {
  const key = `permission ${event.request_id}`;
  const item = transcript.find(key) ?? transcript.put("permission", event, { question: "", options: [] }, key);
  item.answer = event;
  item.version += 1;
}

const note =
  (textOf, tone = "") =>
  (transcript, event) => {
    const text = head(textOf(event), NOTE_CHARS);
    if (text) transcript.put("note", event, { text, tone: typeof tone === "function" ? tone(event) : tone });
  };

const round = (event) => (event.iteration ? `, iteration ${event.iteration}` : "");
const attempt = (event) => (event.attempt > 1 ? `, attempt ${event.attempt}` : "");
const good = (event) => (event.exit_code === 0 ? "good" : "bad");

const TAKES = {
  "turn.start": (transcript, event) =>
    transcript.put("prompt", event, { text: plain(event.text), source: event.source }),
  "tool.call": tool,
  "tool.call_update": tool,
  "permission.request": permission,
  "permission.response": answer,
  "session.plan": (transcript, event) => {
    const key = `${speakerOf(event)} plan`;
    const item = transcript.find(key) ?? transcript.put("plan", event, {}, key);
    item.entries = Array.isArray(event.entries) ? event.entries : [];
    item.version += 1;
  },
  "run.resumed": note((event) => `A new process goes on with the run: ${plain(event.goes_on)}`, "warn"),
  "avenor.phase.start": note((event) => `${event.phase} began${round(event)}${attempt(event)}`),
  "avenor.phase.end": note((event) => `${event.phase} ended: ${event.stop_reason}${round(event)}`, good),
  "avenor.retry": note(
    (event) => `Trying again in ${Math.round(event.delay_ms / 1000)} s (${event.class}, attempt ${event.attempt})`,
    "warn",
  ),
  "avenor.error": note((event) => `${event.source}: ${event.message}`, "bad"),
  "agent.stderr": note((event) => `stderr: ${plain(event.text).trimEnd()}`, "noise"),
  "agent.noise": note((event) => `noise: ${plain(event.text).trimEnd()}`, "noise"),
  "prompt.queued": note((event) => (event.queued > 0 ? `A prompt waits: ${event.text}` : "")),
  "turn.end": note(
    (event) =>
      event.stop_reason === "end_turn"
        ? ""
        : `Turn ended: ${event.stop_reason}${event.error ? `: ${plain(event.error)}` : ""}`,
    "bad",
  ),
  "run.end": note((event) => `Run ended: ${event.status}${event.reason ? `: ${event.reason}` : ""}`, good),
};
