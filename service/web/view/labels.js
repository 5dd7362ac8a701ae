/** Elements, and tokens as labels. Tokens are hostile: they only ever become textContent. */

export const LABEL_HEIGHT = 13; // pixels, of the font in style.css
const LONGEST = 24; // letters of a token in a sentence

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

/** Shortens a token for a sentence. */
export function short({ text }) {
  const letters = [...visible(text)];
  return letters.length > LONGEST ? `${letters.slice(0, LONGEST).join("")}…` : letters.join("");
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

/** Shows every second, third, ... label if labels `pitch` pixels apart would overlap. */
export function thin(axis, pitch) {
  const every = Math.ceil(LABEL_HEIGHT / pitch);
  Array.from(axis.children).forEach((one, i) => one.classList.toggle("thinned", i % every > 0));
}

/** Gives the label at `index` a class and removes it from all others; -1: from every label. */
export function mark(axis, index, name) {
  Array.from(axis.children).forEach((one, i) => one.classList.toggle(name, i === index));
}
