/* Reads a stream of server-sent events, for requests that EventSource cannot make. */

/** Cuts the text of a stream into events. */
export class EventSplitter {
  #rest = "";

  /** The events that `text` completes; notices and comments are left out. */
  feed(text) {
    const blocks = (this.#rest + text).split("\n\n");
    this.#rest = blocks.pop();
    return blocks.map(eventOf).filter((event) => event !== null);
  }
}

/** The event that a `data:` is, null if it is none. */
export function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function eventOf(block) {
  const lines = block.split("\n");
  if (lines.some((line) => line.startsWith("event:"))) return null;
  const data = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice("data:".length));
  return data.length > 0 ? parsed(data.join("\n")) : null;
}
