/* One call to the server that a button makes, and what is said if it is refused. */

import { Unauthorised, Unreachable } from "./api.js";
import { setText } from "./dom.js";

const NOT_OWNER = -32010;

/**
 * Makes a call; what is pressed in `group` meanwhile does nothing. Its buttons are not disabled: that would take the
 * keyboard's focus away from the one that was pressed.
 *
 * @param {Element} group
 * @param {Element} line - where refusals are told; it is an alert
 * @param {function(): Promise} call
 * @returns {Promise<{answer: object|null, owner: string|null}>} no answer if it was refused; the owner, if that is why
 */
export async function ask(group, line, call) {
  if (group.getAttribute("aria-busy") === "true") return { answer: null, owner: null };
  group.setAttribute("aria-busy", "true");
  setText(line, "");
  try {
    return { answer: await call(), owner: null };
  } catch (error) {
    const owner = error.code === NOT_OWNER ? (error.data.owner ?? "Another client") : null;
    setText(line, owner ? `${owner} owns this run.` : sentence(error));
    return { answer: null, owner };
  } finally {
    group.removeAttribute("aria-busy");
  }
}

function sentence(error) {
  if (error instanceof Unreachable) return "The server did not answer. Nothing is known of what became of it.";
  if (error instanceof Unauthorised) return "The server no longer takes this token.";
  return `Refused: ${error.message}`;
}
