/** Elements, and tokens as labels. Tokens are hostile: they only ever become textContent. */

export const LABEL_HEIGHT = 15; // pixels, of a line in style.css: closer labels would overlap
const LONGEST = 24; // letters of a token in a sentence
// The first letter lies in a block of Hebrew, Arabic or another script from right to left.
const RIGHT_TO_LEFT =
  /^\P{L}*[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;

export function element(name, properties = {}, ...children) {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
}

/** Shows a token {text, start}; the style sheet cuts long ones. */
export function label({ text, start }) {
  const className = start === null ? "token special" : "token";
  return element("span", { className, dir: "auto", title: text, textContent: visible(text) });
}

/** Shows spaces, marks that sit on the letter before them, and characters that reorder others. */
function visible(text) {
  const shown = text.replace(/\s/gu, "␣").replace(/[\p{Cc}\u202a-\u202e\u2066-\u2069]/gu, "�");
  return shown.replace(/^\p{M}/u, "◌$&") || "∅";
}

/** Names the attention of a block; its numbers are weights unless the name says that they are norms. */
export function attentionOf({ kind, measure }) {
  return `${kind} attention${measure === "norm" ? ", by norm" : ""}`;
}

/** Shortens a token for a sentence, whose order its direction does not change. */
export function short({ text }) {
  const letters = [...visible(text)];
  const end = letters.length > LONGEST ? "…" : "";
  return element("bdi", { textContent: letters.slice(0, LONGEST).join("") + end });
}

/** Returns the direction in which a text of these tokens is written. */
export function directionOf(tokens) {
  const text = tokens.filter(({ start }) => start !== null).map((token) => token.text).join("");
  return RIGHT_TO_LEFT.test(text) ? "rtl" : "ltr";
}

/** Shows the labels of one axis; `point(i)` is called when the mouse comes to one. */
export function labels(tokens, className, point) {
  const each = tokens.map((token, i) => {
    const node = element("span", {}, label(token));
    node.addEventListener("mouseover", () => point(i));
    return node;
  });
  return element("div", { className: `labels ${className}`, ariaHidden: "true" }, ...each);
}

/** Gives the label at `index` a class and removes it from all others; -1: from every label. */
export function mark(axis, index, name) {
  Array.from(axis.children).forEach((one, i) => one.classList.toggle(name, i === index));
}

/** Calls `act(i)` when the label at `i` is clicked. */
export function onLabel(axis, act) {
  axis.classList.add("clickable");
  axis.addEventListener("click", ({ target }) => {
    const index = Array.from(axis.children).findIndex((one) => one.contains(target));
    if (index >= 0) act(index);
  });
}
