/* Text from elsewhere, made fit to be shown. */

// Escape sequences of terminals, which tools put into their output.
const SEQUENCE = /\x1b(?:\[[0-?]*[ -\/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])/g;
// Controls, and what reorders the text around it, so that a question could read as another one than is asked.
const UNSAFE = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** The text without what would not be seen as it is. */
export const shown = (text) => text.replaceAll("\r\n", "\n").replace(SEQUENCE, "").replace(UNSAFE, "");

/** Any JSON value as text: strings as they are, and nothing for what is absent. */
export function plain(value) {
  if (value === undefined || value === null) return "";
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

/** The text of a content block; of other content its kind, `[image]`. */
export function contentText(content) {
  return content?.type === "text" ? plain(content.text) : `[${plain(content?.type) || "?"}]`;
}

/** The end of a text that may be long, with a word where something is missing. */
export function tail(text, limit) {
  return text.length <= limit ? text : `… ${text.length - limit} characters are left out here\n${text.slice(-limit)}`;
}

/** The start of a text that may be long. */
export function head(text, limit) {
  return text.length <= limit ? text : `${text.slice(0, limit)}\n… ${text.length - limit} more characters`;
}
