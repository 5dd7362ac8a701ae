/** Elements, and tokens as labels. Tokens are hostile: they only ever become textContent. */

export const LABEL_HEIGHT = 13; // pixels, of the font in style.css

export function element(name, properties = {}, ...children) {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
}

/** Of a token {text, start}; the style sheet cuts long ones. */
export function label({ text, start }) {
  const className = start === null ? "token special" : "token";
  return element("span", { className, dir: "auto", title: text, textContent: visible(text) });
}

/** Spaces, and marks that sit on the letter before them, can be seen. */
function visible(text) {
  return text.replace(/\s/gu, "␣").replace(/^\p{M}/u, "◌$&") || "∅";
}

/** For a sentence. */
export function short({ text }) {
  const letters = [...visible(text)];
  return letters.length > 24 ? `${letters.slice(0, 24).join("")}…` : letters.join("");
}

/** One side of a view; `point(i)` is called when the mouse comes to a label. */
export function labels(tokens, className, point) {
  const each = tokens.map((token, i) => {
    const node = element("span", {}, label(token));
    node.addEventListener("mouseover", () => point(i));
    return node;
  });
  return element("div", { className: `labels ${className}`, ariaHidden: "true" }, ...each);
}

/** Of labels so many pixels apart shows every second, third, ... if they would overlap. */
export function thin(side, pitch) {
  const every = Math.ceil(LABEL_HEIGHT / pitch);
  Array.from(side.children).forEach((one, i) => one.classList.toggle("thinned", i % every > 0));
}

/** Gives one label a class and takes it from the others; -1: from all. */
export function mark(side, index, name) {
  Array.from(side.children).forEach((one, i) => one.classList.toggle(name, i === index));
}
