/* Keeps the page connected: events as they come, the whole list after every connect, and again after every break. */

import { Unauthorised } from "./api.js";
import { parsed } from "./sse.js";

// Soon at first, since a supervisor that is replaced is back in a moment.
const RETRY_SECONDS = [0.5, 1, 2, 4, 8];

/**
 * A connection that is made again when it breaks.
 *
 * It calls `on.state(name, seconds)` with connecting, live, waiting (so many seconds until it tries again) or
 * unauthorised (it has given up); `on.list(snapshots)` after each connect, before any event of that connection; and
 * `on.event(event)`.
 */
export class Link {
  #api;
  #on;
  #source = null;
  #timer = 0;
  #failures = 0;
  #attempt = 0;

  constructor(api, on) {
    this.#api = api;
    this.#on = on;
  }

  /** Connects at once, whatever it was at. */
  async connect() {
    this.close();
    const attempt = this.#attempt;
    this.#on.state("connecting", 0);
    try {
      await this.#api.list(); // an EventSource does not tell why it failed
      if (attempt === this.#attempt) this.#listen(attempt);
    } catch (error) {
      if (attempt === this.#attempt) this.#failed(error);
    }
  }

  /** Ends it. */
  close() {
    this.#attempt += 1;
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }

  #listen(attempt) {
    const source = (this.#source = this.#api.events());
    let early = [];
    source.onmessage = (message) => {
      const event = parsed(message.data);
      if (event === null) return;
      if (early === null) this.#on.event(event);
      else early.push(event);
    };
    source.onopen = async () => {
      try {
        const snapshots = await this.#api.list();
        if (attempt !== this.#attempt) return;
        this.#failures = 0;
        this.#on.list(snapshots);
        early.forEach((event) => this.#on.event(event));
        early = null;
        this.#on.state("live", 0);
      } catch (error) {
        if (attempt === this.#attempt) this.#failed(error);
      }
    };
    source.onerror = () => {
      if (attempt === this.#attempt) this.#failed(null);
    };
  }

  #failed(error) {
    this.close();
    if (error instanceof Unauthorised) {
      this.#on.state("unauthorised", 0);
      return;
    }
    const seconds = RETRY_SECONDS[Math.min(this.#failures, RETRY_SECONDS.length - 1)];
    this.#failures += 1;
    this.#on.state("waiting", seconds);
    this.#timer = setTimeout(() => this.connect(), seconds * 1000);
  }
}
