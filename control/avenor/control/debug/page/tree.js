/* The runtimes as a tree: who started whom. Moves with the arrow keys as the ARIA pattern for trees says. */

import { byId, h, keyed, setAttribute, setText } from "./dom.js";
import { duration, idOf, nameOf, stateOf, usageText } from "./format.js";

// Roots that ended longer ago are shown when they are asked for.
const ENDED_ROOTS = 50;

/** The tree; `choose(id)` is called when somebody selects a runtime. */
export class Tree {
  #choose;
  #folded = new Set();
  #shownEnded = ENDED_ROOTS;
  #rows = [];
  #selected = null;
  #redraw;

  constructor(choose, redraw) {
    this.#choose = choose;
    this.#redraw = redraw;
    byId("tree").addEventListener("keydown", (event) => this.#key(event));
    byId("more").addEventListener("click", () => {
      this.#shownEnded += ENDED_ROOTS;
      redraw();
    });
  }

  /** Draws it. */
  draw(runtimes, selected, now) {
    const had = this.#rows.find((row) => row.id === document.activeElement?.boardKey);
    this.#selected = selected;
    const { rows, hidden } = rowsOf(runtimes, this.#folded, this.#shownEnded);
    this.#rows = rows;
    const stop = rows.some((row) => row.id === selected) ? selected : rows[0]?.id;
    keyed(
      byId("tree"),
      rows,
      (row) => row.id,
      (row) => this.#make(row),
      (element, row) => update(element, row, { isSelected: row.id === selected, stop: had?.id ?? stop, now }),
    );
    const more = byId("more");
    more.hidden = hidden === 0;
    setText(more, `Show ${Math.min(hidden, ENDED_ROOTS)} more that ended`);
  }

  #make(row) {
    return h(
      "div",
      { class: "node", role: "treeitem", on: { click: (event) => this.#click(event, row.id) } },
      h("span", { class: "twist", "aria-hidden": "true" }),
      h("span", { class: "dot", "aria-hidden": "true" }),
      h("span", { class: "name" }),
      h("span", { class: "state" }),
      h("span", { class: "soft meta" }),
    );
  }

  #click(event, id) {
    if (event.target.classList.contains("twist")) this.#fold(id, !this.#folded.has(id));
    else this.#choose(id);
    this.#focus(id);
  }

  #key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const at = this.#rows.findIndex((row) => row.id === document.activeElement?.boardKey);
    const move = at >= 0 && this.#moves[event.key];
    if (!move) return;
    event.preventDefault();
    move(at, this.#rows[at]);
  }

  #moves = {
    ArrowDown: (at) => this.#go(at + 1),
    ArrowUp: (at) => this.#go(at - 1),
    Home: () => this.#go(0),
    End: () => this.#go(this.#rows.length - 1),
    ArrowRight: (at, row) => {
      if (row.hasChildren && this.#folded.has(row.id)) this.#fold(row.id, false);
      else if (row.hasChildren) this.#go(at + 1);
    },
    ArrowLeft: (at, row) => {
      if (row.hasChildren && !this.#folded.has(row.id)) this.#fold(row.id, true);
      else this.#focus(row.snapshot.parent_id);
    },
    Enter: (_at, row) => this.#choose(row.id),
    " ": (_at, row) => this.#choose(row.id),
  };

  #go(at) {
    const row = this.#rows[at];
    if (row) this.#focus(row.id);
  }

  #fold(id, isFolded) {
    if (isFolded) this.#folded.add(id);
    else this.#folded.delete(id);
    this.#redraw();
  }

  #focus(id) {
    const elements = [...byId("tree").children];
    const wanted = elements.find((element) => element.boardKey === id);
    if (!wanted) return;
    for (const element of elements) element.tabIndex = element === wanted ? 0 : -1;
    wanted.focus();
  }
}

/** The visible rows from top to bottom, live roots first and the newest on top, and how many ended roots are left out. */
function rowsOf(runtimes, folded, endedRoots) {
  const below = new Map();
  for (const [id, snapshot] of runtimes) {
    const parent = runtimes.has(snapshot.parent_id) ? snapshot.parent_id : null;
    below.set(parent, [...(below.get(parent) ?? []), id]);
  }
  const isLive = (id) => runtimes.get(id).status !== "ended" || (below.get(id) ?? []).some(isLive);
  const roots = (below.get(null) ?? []).toReversed();
  const live = roots.filter(isLive);
  const ended = roots.filter((id) => !isLive(id));
  const rows = [];
  const walk = (ids, level) =>
    ids.forEach((id, index) => {
      const children = below.get(id) ?? [];
      const place = { level, position: index + 1, size: ids.length };
      rows.push({
        id,
        snapshot: runtimes.get(id),
        hasChildren: children.length > 0,
        isFolded: folded.has(id),
        ...place,
      });
      if (!folded.has(id)) walk(children, level + 1);
    });
  walk([...live, ...ended.slice(0, endedRoots)], 1);
  return { rows, hidden: Math.max(0, ended.length - endedRoots) };
}

function update(element, row, { isSelected, stop, now }) {
  const { snapshot } = row;
  const state = stateOf(snapshot);
  const [, , name, word, meta] = element.children;
  setText(name, nameOf(snapshot));
  setText(word, state);
  setText(meta, metaOf(snapshot, now));
  element.dataset.state = state;
  element.classList.toggle("ended", snapshot.status === "ended");
  element.style.setProperty("--level", Math.min(row.level - 1, 6));
  element.tabIndex = row.id === stop ? 0 : -1;
  setAttribute(element, "aria-selected", isSelected);
  setAttribute(element, "aria-level", row.level);
  setAttribute(element, "aria-posinset", row.position);
  setAttribute(element, "aria-setsize", row.size);
  setAttribute(element, "aria-expanded", row.hasChildren ? !row.isFolded : null);
}

function metaOf(snapshot, now) {
  const running = snapshot.phases.filter((phase) => phase.state === "running").map((phase) => phase.name);
  const took = snapshot.started_at ? duration((snapshot.ended_at ?? now) - snapshot.started_at) : "";
  const what = running.length > 0 ? running.join(", ") : snapshot.kind === "single" ? snapshot.backend : snapshot.kind;
  const id = snapshot.label ? idOf(snapshot) : "";
  return [id, took, usageText(snapshot.usage), what].filter(Boolean).join(" · ");
}
