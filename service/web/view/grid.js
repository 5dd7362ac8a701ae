/**
 * The matrices of a block as a grid of small heatmaps: layers down, heads across. Each is a button;
 * arrow keys move between them.
 */
import { cellsOf } from "view/heatmap.js";
import { attentionOf, element } from "view/labels.js";
import { highestOf, pooled, sharesOf } from "view/shares.js";

const MOST = 36; // cells along a side: about as many as a small heatmap has pixels

const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/**
 * Draws `matrices`, a list of layers that are lists of heads, each {layers, heads, weights}; without
 * weights the buttons are blank. `pick(places)` is called with the {layers, heads} of a button;
 * the heads of `aligning`, {layers, heads}, are marked;
 * with `reducible`, headers are buttons too, which pick all heads of a layer or all layers of a head.
 * Returns {node, step(current, last), press({layers, heads}), dim(isOff)}; `dim` marks the buttons of
 * the heads that are off, by a function of their {layers, heads}.
 */
export function grid({ kind, measure, columns }, matrices, { pick, oneScale, aligning, reducible = false }) {
  const drawn = matrices.flat().filter(({ weights }) => weights);
  const highest = oneScale ? highestOf(drawn.flatMap(({ weights }) => weights)) : undefined;
  const cells = [];
  const headers = reducible ? headerButton : headerText;
  const places = withHeaders(matrices);
  const nodes = places.map((row, i) => row.map((place, j) => {
    if (i === 0 || j === 0) return headers(place, i, j, pick);
    const thumb = place.weights && cellsOf(sharesOf(columns, place.weights, highest), MOST);
    if (thumb) cells.push(thumb);
    const button = buttonOf(nameOf(place), place, pick, thumb?.node ?? "");
    button.classList.toggle("aligning", isPart(place, aligning));
    return button;
  }));
  const plot = element("div", { className: "grid", role: "group" }, ...nodes.flat());
  plot.ariaLabel = `${attentionOf({ kind, measure })}: layers down, heads across; arrow keys move`;
  plot.style.setProperty("--across", matrices[0].length);
  plot.addEventListener("keydown", (event) => move(event, nodes));
  const caption = element("figcaption", { textContent: "Layers down, heads across" });
  const node = element("figure", { className: "overview" }, caption, plot);
  const press = (chosen) => pressOnly(nodes, places, chosen);
  press({ layers: [], heads: [] });
  const dim = (isOff) => dimOff(nodes, places, isOff);
  return { node, press, dim, step: (...rows) => cells.forEach((each) => each.step(...rows)) };
}

/** Puts the header of each row and column before it: {layers, heads} of all that it stands for. */
function withHeaders(matrices) {
  const layers = matrices.flatMap(([first]) => first.layers);
  const heads = matrices[0].flatMap((each) => each.heads);
  const top = [{ layers, heads }, ...matrices[0].map((each) => ({ layers, heads: each.heads }))];
  return [top, ...matrices.map((row) => [{ layers: row[0].layers, heads }, ...row])];
}

function buttonOf(name, place, pick, ...children) {
  const button = element("button", { type: "button", ariaLabel: name, title: name }, ...children);
  button.addEventListener("click", () => pick({ layers: place.layers, heads: place.heads }));
  return button;
}

/** Returns whether a head is one of those that align. */
function isPart({ layers: [layer], heads: [head] }, aligning) {
  return Boolean(aligning?.layers.includes(layer) && aligning.heads.includes(head));
}

function headerButton(place, row, column, pick) {
  const text = row + column === 0 ? "all" : textOf(place, row);
  const button = buttonOf(nameOf(place), place, pick, text);
  button.className = "header";
  return button;
}

function headerText(place, row, column) {
  const textContent = row + column === 0 ? "" : textOf(place, row);
  return element("span", { className: "header", textContent });
}

/** Counts the layers or heads of a header; a reduced axis has no number. */
function textOf({ layers, heads }, row) {
  const indices = row === 0 ? heads : layers;
  return indices.length === 1 ? `${indices[0]}` : "all";
}

function nameOf({ layers, heads }) {
  const name = (what, indices) => (indices.length === 1 ? `${what} ${indices[0]}` : `all ${what}s`);
  return `${name("layer", layers)}, ${name("head", heads)}`;
}

/** Marks the button of the chosen place, and makes it the one that Tab reaches. */
function pressOnly(nodes, places, { layers, heads }) {
  const same = (one, other) => `${one}` === `${other}`;
  const flat = places.flat();
  const pressed = flat.findIndex((each) => same(each.layers, layers) && same(each.heads, heads));
  const buttons = nodes.flat();
  buttons.forEach((node, i) => node.type && (node.ariaPressed = `${i === pressed}`));
  reach(nodes, buttons[pressed]?.type ? buttons[pressed] : buttons.find((node) => node.type));
}

function dimOff(nodes, places, isOff) {
  places.forEach((row, i) => row.forEach((place, j) => {
    if (i === 0 || j === 0) return;
    const off = isOff(place);
    nodes[i][j].classList.toggle("off", off);
    nodes[i][j].ariaLabel = nodes[i][j].title = nameOf(place) + (off ? ", off" : "");
  }));
}

function reach(nodes, reached) {
  for (const node of nodes.flat()) node.tabIndex = node === reached ? 0 : -1;
}

function move(event, nodes) {
  if (!MOVES[event.key]) return;
  event.preventDefault();
  const row = nodes.findIndex((each) => each.includes(document.activeElement));
  const column = nodes[row].indexOf(document.activeElement);
  const [down, across] = MOVES[event.key];
  const next = nodes[row + down]?.[column + across];
  if (!next?.type) return; // the edge, or a header that is not a button
  reach(nodes, next);
  next.focus();
}
