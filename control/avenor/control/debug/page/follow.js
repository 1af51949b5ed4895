/*
 * The events of one runtime from some place on, each once and in order: first from its log, then as they come. Where a
 * live event does not fit, the log fills the gap.
 */

const PAGE = 500;

/**
 * Follows a runtime.
 *
 * It calls `on.newer(events)`, `on.older(events)` for what `older()` brings, and `on.ready()` when it has caught up for
 * the first time.
 */
export class Follow {
  #api;
  #runtimeId;
  #on;
  #last;
  #wanted;
  #filling = false;
  #isReady = false;
  #isOver = false;

  /**
   * @param {Api} api
   * @param {string|null} runtimeId
   * @param {number} afterSeq - where to begin; 0 is the first event
   * @param {number} latestSeq - the last event that is known to be there
   * @param {object} on - see above
   */
  constructor(api, runtimeId, afterSeq, latestSeq, on) {
    this.#api = api;
    this.#runtimeId = runtimeId;
    this.#on = on;
    this.#last = afterSeq;
    this.#wanted = latestSeq;
    this.oldest = afterSeq; // events up to this one have not been read, or were let go; `older` brings them
    this.fill(latestSeq);
  }

  /** Takes an event of this runtime as it comes. */
  take(event) {
    if (event.seq <= this.#last || this.#isOver) return;
    if (event.seq === this.#last + 1 && !this.#filling) this.#give([event]);
    else this.fill(event.seq);
  }

  /** Ends it; nothing is called any more. */
  close() {
    this.#isOver = true;
  }

  /** Reads the log up to that event, if it has not been read; to be called after a break, too. */
  async fill(latestSeq) {
    this.#wanted = Math.max(this.#wanted, latestSeq);
    if (this.#filling) return;
    this.#filling = true;
    try {
      // A stream can end before all that is wanted by now has come; one that brings nothing has nothing more.
      for (let before = -1; before < this.#last && this.#last < this.#wanted && !this.#isOver; ) {
        before = this.#last;
        await this.#readOn();
      }
      if (!this.#isOver && !this.#isReady) {
        this.#isReady = true;
        this.#on.ready();
      }
    } catch {
      /* the connection is gone; this is called again when it is back */
    } finally {
      this.#filling = false;
    }
  }

  /** Reads a page of what is before the oldest event. */
  async older() {
    const end = this.oldest;
    const start = Math.max(0, end - PAGE);
    const page = [];
    for (let before = -1, at = start; before < at && at < end; ) {
      before = at;
      for await (const events of this.#api.log(this.#runtimeId, at)) {
        page.push(...events.filter((event) => event.seq <= end));
        at = events.at(-1).seq;
        if (at >= end) break;
      }
    }
    if (this.#isOver || this.oldest !== end) return;
    this.oldest = start;
    this.#on.older(page);
  }

  async #readOn() {
    for await (const events of this.#api.log(this.#runtimeId, this.#last)) {
      if (this.#isOver) return;
      const fresh = events.filter((event) => event.seq > this.#last);
      if (fresh.length > 0) this.#give(fresh);
      if (this.#last >= this.#wanted) return;
    }
  }

  #give(events) {
    this.#last = events.at(-1).seq;
    this.#on.newer(events);
  }
}
