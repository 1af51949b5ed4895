/* Tells assistive technology what changed elsewhere on the page. */

import { byId } from "./dom.js";
import { shown } from "./text.js";

// Longer ones would be read for minutes; the page has the rest.
const MOST_CHARS = 300;

/** Says it, politely. The same sentence again is said again. */
export function say(sentence) {
  const line = document.createElement("p");
  line.textContent = shown(sentence).slice(0, MOST_CHARS);
  byId("say").replaceChildren(line);
}
