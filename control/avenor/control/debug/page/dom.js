/* Makes and changes elements. Text only ever becomes text nodes: what agents say is never read as markup. */

import { shown } from "./text.js";

/**
 * A new element.
 *
 * @param {string} tag - its name
 * @param {object} [members] - `class`, `on` ({event: listener}), `data` (dataset); booleans set properties (`hidden`,
 *   `disabled`, `open`); anything else is an attribute, left out when null
 * @param {...(Node|string|null)} children - strings become text
 */
export function h(tag, members = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(members)) {
    if (value === null || value === undefined) continue;
    if (name === "class") element.className = value;
    else if (name === "on")
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (typeof value === "boolean") element[name] = value;
    else element.setAttribute(name, shown(String(value)));
  }
  for (const child of children) {
    if (child !== null && child !== undefined) element.append(typeof child === "string" ? shown(child) : child);
  }
  return element;
}

/** The element of index.html with that id. */
export const byId = (id) => document.getElementById(id);

/** Changes an element's text, and nothing if it is that already: assistive technology would read it again. */
export function setText(element, text) {
  const fit = shown(text);
  if (element.textContent !== fit) element.textContent = fit;
}

/** Sets an attribute, or with null removes it; only if that changes something. */
export function setAttribute(element, name, value) {
  if (value === null) element.removeAttribute(name);
  else {
    const fit = shown(String(value));
    if (element.getAttribute(name) !== fit) element.setAttribute(name, fit);
  }
}

/**
 * Makes the children of `parent` fit `items`, keeping the element of each key and with it focus, folds and selection.
 *
 * @param {Element} parent
 * @param {Array} items
 * @param {function(*): string} keyOf
 * @param {function(*): Element} make - an element for a new item
 * @param {function(Element, *): void} update - brings an element up to date
 */
export function keyed(parent, items, keyOf, make, update) {
  const old = new Map([...parent.children].map((child) => [child.boardKey, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let child = old.get(key);
    if (child) old.delete(key);
    else {
      child = make(item);
      child.boardKey = key;
    }
    update(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const child of old.values()) child.remove();
}
