/* Asks the server: same origin, with the token that came in the address. */

import { EventSplitter } from "./sse.js";

const KEY = "avenor-token";

/** The server did not take the token. */
export class Unauthorised extends Error {}

/** Nobody answered, or only that there is nobody behind it. */
export class Unreachable extends Error {}

/** The server said no, and why. `code` is the control protocol's, 0 without one; `data` its details. */
export class Refused extends Error {
  constructor(message, code, data) {
    super(message);
    this.code = code;
    this.data = data;
  }
}

/** The token of the address's fragment, which it is taken out of, else the one that this tab had before. */
export function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given !== null) {
    history.replaceState(null, "", location.pathname + location.search);
    keepToken(given);
    return given;
  }
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

/** Keeps the token for reloads of this tab, where the browser allows it. */
export function keepToken(token) {
  try {
    sessionStorage.setItem(KEY, token);
  } catch {
    /* storage is switched off: a reload asks again */
  }
}

/**
 * The server's methods.
 *
 * Each throws `Unauthorised`, `Unreachable` or `Refused`. A run without a supervisor has no runtime id: null.
 */
export class Api {
  constructor(token) {
    this.token = token;
  }

  list = () => this.#ask("/runtimes");

  status = (runtimeId) => this.#ask(`/status${part(runtimeId)}`);

  /**
   * The log of a runtime after `afterSeq`, in batches as they arrive; of one that lives it goes on for ever. Leaving
   * the loop ends the request.
   */
  async *log(runtimeId, afterSeq) {
    const leave = new AbortController();
    const query = new URLSearchParams({ ...(runtimeId ? { runtime_id: runtimeId } : {}), after_seq: afterSeq });
    try {
      const response = await this.#fetch(`/events?${query}`, { signal: leave.signal });
      if (response.status === 204) return; // it has ended, and there is no more
      if (!response.ok) throw await failure(response);
      const splitter = new EventSplitter();
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let read = await reader.read(); !read.done; read = await reader.read()) {
        const events = splitter.feed(read.value);
        if (events.length > 0) yield events;
      }
    } catch (error) {
      throw error instanceof TypeError ? new Unreachable(String(error)) : error;
    } finally {
      leave.abort();
    }
  }

  cancel = (runtimeId, force) => this.#ask(`/cancel${part(runtimeId)}`, { force });

  prompt = (runtimeId, text, force) => this.#ask(`/prompt${part(runtimeId)}`, { text, force });

  answer = (runtimeId, requestId, optionId, message, force) =>
    this.#ask("/answer-permission", {
      ...(runtimeId ? { runtime_id: runtimeId } : {}),
      request_id: requestId,
      option_id: optionId,
      ...(message ? { message } : {}),
      force,
    });

  /** A stream of all events from now on. EventSource cannot send headers, so that the token goes in the address. */
  events = () => new EventSource(`/events?${new URLSearchParams({ token: this.token })}`);

  async #ask(path, body) {
    const response = await this.#fetch(path, body === undefined ? {} : { method: "POST", body: JSON.stringify(body) });
    if (!response.ok) throw await failure(response);
    try {
      return await response.json();
    } catch (error) {
      throw new Unreachable(String(error));
    }
  }

  async #fetch(path, options) {
    try {
      return await fetch(path, { ...options, headers: { "X-Avenor-Token": this.token }, cache: "no-store" });
    } catch (error) {
      throw new Unreachable(String(error));
    }
  }
}

// A board's process answers so while there is no supervisor behind it, and a server that is closing.
const AWAY = new Set([502, 503, 504]);

const part = (runtimeId) => (runtimeId ? `/${encodeURIComponent(runtimeId)}` : "");

async function failure(response) {
  if (response.status === 401) return new Unauthorised("the token is not the server's");
  const answer = await response.json().catch(() => null);
  const error = answer?.error ?? {};
  const message = error.message ?? `the server answered ${response.status}`;
  return AWAY.has(response.status) ? new Unreachable(message) : new Refused(message, error.code ?? 0, error.data ?? {});
}
