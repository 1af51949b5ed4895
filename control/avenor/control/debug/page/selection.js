/* The runtime that is looked at: its transcript and its time line, each followed from where it needs to begin. */

import { byId, setText } from "./dom.js";
import { Follow } from "./follow.js";
import { idOf } from "./format.js";
import { Lanes } from "./lanes.js";
import { drawLanes } from "./lanes-view.js";
import { Transcript } from "./transcript.js";
import { TranscriptView } from "./transcript-view.js";

// A transcript begins with this many of the last events; "Older…" reads more.
const TAIL_EVENTS = 1000;
// A time line needs the beginning. Of a run with more events than this it shows the last ones only.
const LINE_EVENTS = 100_000;

/** What is selected; `changed` is called when there is something to draw. */
export class Selection {
  id = null;
  #runId = null;
  #api;
  #changed;
  #lane = null;
  #transcript = new Transcript();
  #lanes = new Lanes();
  #talk = null;
  #line = null;
  #isReady = false;
  #isDirty = true;
  #view = new TranscriptView(() => this.#older());

  constructor(api, changed) {
    this.#api = api;
    this.#changed = changed;
    byId("everyone").addEventListener("click", () => this.#chooseLane(this.#lane));
  }

  /** Looks at this runtime from now on; null at none. */
  choose(snapshot) {
    const id = snapshot && idOf(snapshot);
    if (id === this.id && snapshot?.run_id === this.#runId) return;
    this.#talk?.close();
    this.#line?.close();
    this.#talk = this.#line = null;
    this.id = id;
    this.#runId = snapshot?.run_id ?? null;
    this.#lane = null;
    this.#isReady = false;
    this.#transcript = new Transcript();
    this.#lanes = new Lanes();
    setText(byId("talk-title"), "Transcript");
    byId("items").replaceChildren();
    byId("lanes").replaceChildren();
    if (snapshot) this.#follow(snapshot);
    this.#view.toEnd();
    this.#redraw();
  }

  /** After a new connection: reads what was missed. */
  refresh(runtimes) {
    const snapshot = runtimes.get(this.id);
    if (!snapshot) return;
    if (snapshot.run_id !== this.#runId) this.choose(snapshot);
    this.#talk.fill(snapshot.latest_seq);
    this.#line.fill(snapshot.latest_seq);
  }

  /** Takes an event as it comes, of whatever runtime. */
  take(event) {
    if ((event.runtime_id ?? event.run_id) !== this.id) return;
    this.#talk.take(event);
    this.#line.take(event);
  }

  /** Draws it. */
  draw(snapshot, now) {
    drawLanes(this.#lanes, snapshot.agent || snapshot.backend, this.#lane, now, (name) => this.#chooseLane(name));
    if (!this.#isDirty) return;
    this.#isDirty = false;
    byId("everyone").hidden = this.#lane === null;
    this.#view.draw(this.#transcript, this.#lane, this.#talk.oldest > 0, this.#isReady);
  }

  #follow(snapshot) {
    const { runtime_id: runtimeId, latest_seq: latest } = snapshot;
    this.#talk = new Follow(this.#api, runtimeId, Math.max(0, latest - TAIL_EVENTS), latest, {
      newer: (events) => this.#said(events),
      older: (events) => this.#transcript.prepend(events),
      ready: () => {
        this.#isReady = true;
        this.#redraw();
      },
    });
    this.#line = new Follow(this.#api, runtimeId, Math.max(0, latest - LINE_EVENTS), latest, {
      newer: (events) => {
        this.#lanes.add(events);
        this.#changed();
      },
      older: () => {},
      ready: this.#changed,
    });
  }

  #said(events) {
    this.#transcript.add(events);
    // Somebody who reads further up keeps what is there, within reason.
    const oldest = this.#view.isAtEnd || this.#transcript.isHuge ? this.#transcript.trim() : null;
    if (oldest !== null) this.#talk.oldest = oldest;
    this.#redraw();
  }

  async #older() {
    await this.#talk.older();
    this.#view.draw(this.#transcript, this.#lane, this.#talk.oldest > 0, this.#isReady);
  }

  #chooseLane(name) {
    this.#lane = this.#lane === name ? null : name;
    setText(byId("talk-title"), this.#lane === null ? "Transcript" : `Transcript of ${this.#lane}`);
    this.#view.toEnd();
    this.#redraw();
  }

  #redraw() {
    this.#isDirty = true;
    this.#changed();
  }
}
