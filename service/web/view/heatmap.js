/**
 * Draws one block of attention as the service answers it: one matrix as a heatmap beside a
 * bipartite view and above a table, several as a grid. It asks the service for nothing, so that a
 * downloaded page can carry it.
 */
import { bipartite } from "view/bipartite.js";
import { LABEL_HEIGHT, element, label, labels, mark, short, thin } from "view/labels.js";

const VIRIDIS = [ // as in service/formats/colours.py
  [68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141],
  [39, 173, 129], [92, 200, 99], [170, 220, 50], [253, 231, 37],
];
const SMALLEST_CELL = 8;
const LARGEST_CELL = 44;
const WIDE = 36; // columns that want the whole width: the views come one above the other
const MOVES = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
  Home: [0, -Infinity],
  End: [0, Infinity],
  PageUp: [-Infinity, 0],
  PageDown: [Infinity, 0],
};

/**
 * Fills the container. `onPick({layers, heads})` is called when a matrix of a grid is chosen;
 * without it the matrix is shown below the grid.
 * Returns {step(last), point(row, column)}: rows after `last` are dimmed; -1 points at no row or no
 * column, so that (2, -1) is a row's token and (-1, 2) a column's.
 */
export function show(container, block, { onPick } = {}) {
  const view = viewOf(block, onPick);
  container.replaceChildren(...view.nodes);
  const step = block.kind === "encoder" ? () => {} : view.step;
  return { step, point: view.point };
}

function viewOf(block, onPick) {
  const matrices = split(block);
  if (block.rows.length === 0) return nothing(block);
  return matrices.length === 1 ? single(block, matrices[0]) : grid(block, matrices, onPick);
}

function nothing({ kind }) {
  const textContent = `${kind} attention: the target has no such step.`;
  return { nodes: [element("p", { textContent })], step: () => {}, point: () => {} };
}

function split({ axes, layers, heads, data }) {
  const [byLayer, byHead] = ["layer", "head"].map((axis) => axes.includes(axis));
  return (byLayer ? data : [data]).flatMap((ofLayer, i) =>
    (byHead ? ofLayer : [ofLayer]).map((weights, j) => ({
      weights,
      layers: byLayer ? [layers[i]] : layers,
      heads: byHead ? [heads[j]] : heads,
    })),
  );
}

function titleOf({ reduce_layers, reduce_heads }, { layers, heads }) {
  const name = (what, indices, how) => `${how ? `${how} of ${what}s` : what} ${indices.join(", ")}`;
  return `${name("layer", layers, reduce_layers)}; ${name("head", heads, reduce_heads)}`;
}

function grid(block, matrices, onPick) {
  const highest = Math.max(...matrices.map(({ weights }) => highestOf(weights)));
  const picked = element("div");
  const pick = onPick ?? ((matrix) => {
    show(picked, alone(block, matrix));
    picked.scrollIntoView({ block: "nearest" });
  });
  const frames = matrices.map(({ weights }) => frame(weights, highest));
  const buttons = matrices.map((matrix, i) => {
    const title = element("span", { textContent: titleOf(block, matrix) });
    const button = element("button", { type: "button" }, frames[i].node, title);
    button.addEventListener("click", () => pick(matrix));
    return button;
  });
  const list = element("div", { className: "grid", role: "group" }, ...buttons);
  list.ariaLabel = `${block.kind} attention, ${matrices.length} heatmaps`;
  const hint = `${block.kind} attention: choose a heatmap to see its tokens.`;
  list.style.setProperty("--across", Math.min(8, block.shape.at(-3)));
  return {
    nodes: [element("p", { textContent: hint }), list, legend(highest), picked],
    step: (last) => frames.forEach((each) => each.step(last)),
    point: () => {},
  };
}

function alone(block, { layers, heads, weights }) {
  return { ...block, layers, heads, axes: block.axes.slice(-2), data: weights };
}

/** Both views of one matrix, what is pointed at in words, and the table. */
function single(block, matrix) {
  const { weights } = matrix;
  const highest = highestOf(weights);
  const readout = element("p", { className: "readout", ariaLive: "polite" });
  let at = [-1, -1];
  const point = (row, column) => {
    at = [row, column];
    views.forEach((view) => view.point(row, column));
    readout.textContent = sentence(block, weights, row, column);
  };
  const views = [
    heatmap(block, matrix, highest, point),
    bipartite(block, weights, highest, point),
  ];
  views[0].node.append(readout, legend(highest));
  const both = element("div", { className: "views" }, ...views.map((view) => view.node));
  both.classList.toggle("wide", weights[0].length > WIDE);
  both.addEventListener("mouseleave", () => point(-1, -1));
  both.addEventListener("keydown", (event) => {
    const next = moved(at, event.key, weights);
    if (!next) return;
    event.preventDefault();
    point(...next);
    views[0].reveal();
  });
  point(-1, -1);
  return {
    nodes: [both, table(block, matrix)],
    step: (last) => views.forEach((view) => view.step(last)),
    point,
  };
}

/** Beyond the first cell of a row or column lies its token; null where a key does not lead on. */
function moved([row, column], key, weights) {
  if (key === "Escape") return [-1, -1];
  if (!MOVES[key]) return null;
  if (row < 0 && column < 0) return [0, 0];
  const clamp = (place, last) => Math.min(Math.max(place, -1), last);
  const next = [
    clamp(row + MOVES[key][0], weights.length - 1),
    clamp(column + MOVES[key][1], weights[0].length - 1),
  ];
  return Math.max(...next) < 0 ? null : next;
}

function sentence({ rows, columns }, weights, row, column) {
  if (row < 0 && column < 0) return "Point at a cell or a token, or move with the arrow keys.";
  const most = (of, tokens) => {
    const each = tokens.map((token, i) => ({ name: `${short(token)} (${i + 1})`, weight: of[i] }));
    const highest = each.sort((a, b) => b.weight - a.weight).slice(0, 3);
    return highest.map(({ name, weight }) => `${name} with ${weight.toFixed(2)}`).join(", ");
  };
  if (row < 0) {
    const heeded = most(weights.map((each) => each[column]), rows);
    return `column ${column + 1}: ${short(columns[column])} is attended to by ${heeded}`;
  }
  const heeds = column < 0
    ? most(weights[row], columns)
    : `${short(columns[column])} with ${weights[row][column].toFixed(2)}`;
  return `row ${row + 1}: ${short(rows[row])} attends to ${heeds}`;
}

function heatmap(block, matrix, highest, point) {
  const { weights } = matrix;
  const cells = frame(weights, highest);
  const cursor = element("div", { className: "cursor" });
  const title = `${block.kind} attention, ${titleOf(block, matrix)}`;
  const size = `${weights.length} rows, ${weights[0].length} columns`;
  const keys = `${title}: arrow keys move`;
  cells.node.append(cursor);
  // Without this role screen readers keep the arrow keys to themselves.
  Object.assign(cells.node, { tabIndex: 0, role: "application", ariaLabel: keys });
  Object.assign(cells.canvas, { role: "img", ariaLabel: `${title}: ${size}, as a table below` });
  const rows = labels(block.rows, "rows", (i) => point(i, -1));
  const columns = labels(block.columns, "columns", (i) => point(-1, i));
  const corner = element("div", { className: "corner" });
  const plot = element("div", { className: "plot" }, corner, columns, rows, cells.node);
  plot.style.cssText = `--rows: ${weights.length}; --columns: ${weights[0].length}`;
  const box = element("div", { className: "box" }, plot);
  const caption = element("figcaption", { textContent: title });
  const node = element("figure", { className: "heatmap" }, caption, box);
  cells.node.addEventListener("mousemove", (event) => point(...cellAt(event, weights)));
  new ResizeObserver(() => fit(node, plot, rows, columns)).observe(node);
  return {
    node,
    step: (last) => {
      cells.step(last);
      mark(rows, last, "current-token");
    },
    reveal: () => cursor.scrollIntoView({ block: "nearest", inline: "nearest" }),
    point: (row, column) => {
      place(cursor, weights, row, column);
      mark(rows, row, "pointed");
      mark(columns, column, "pointed");
    },
  };
}

function cellAt({ clientX, clientY, currentTarget }, weights) {
  const { left, top, width, height } = currentTarget.getBoundingClientRect();
  const within = (part, count) => Math.max(0, Math.min(count - 1, Math.floor(part * count)));
  const row = within((clientY - top) / height, weights.length);
  return [row, within((clientX - left) / width, weights[0].length)];
}

/** A cell, or a whole row or column. */
function place(node, weights, row, column) {
  const [height, width] = [100 / weights.length, 100 / weights[0].length];
  node.hidden = row < 0 && column < 0;
  node.style.inset = `${Math.max(0, row) * height}% auto auto ${Math.max(0, column) * width}%`;
  node.style.height = `${row < 0 ? 100 : height}%`;
  node.style.width = `${column < 0 ? 100 : width}%`;
}

/** Cells as large as the width allows; of labels that would overlap, every second, third, ... */
function fit(node, plot, rows, columns) {
  const width = (node.clientWidth - rows.offsetWidth - 16) / columns.children.length;
  const cell = Math.floor(Math.max(SMALLEST_CELL, Math.min(LARGEST_CELL, width)));
  const longest = Math.max(...Array.from(columns.children, (one) => one.textContent.length));
  plot.style.setProperty("--cell", `${cell}px`);
  columns.classList.toggle("upright", longest * 8 > Math.max(cell, LABEL_HEIGHT));
  thin(rows, cell);
  thin(columns, cell);
}

function frame(weights, highest) {
  const canvas = paint(weights, highest);
  const later = element("div", { className: "later", hidden: true });
  const current = element("div", { className: "current", hidden: true });
  const step = (last) => {
    current.hidden = later.hidden = false;
    place(current, weights, last, -1);
    later.style.inset = `${(100 * (last + 1)) / weights.length}% 0 0`;
  };
  return { node: element("div", { className: "cells" }, canvas, later, current), canvas, step };
}

/** One pixel a cell: the style sheet makes it larger. */
function paint(weights, highest) {
  const canvas = element("canvas", { width: weights[0].length, height: weights.length });
  const image = new ImageData(canvas.width, canvas.height);
  weights.flat().forEach((weight, i) => image.data.set(viridis(weight / highest), 4 * i));
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function viridis(share) {
  const at = share * (VIRIDIS.length - 1);
  const [low, high] = [VIRIDIS[Math.floor(at)], VIRIDIS[Math.ceil(at)]];
  return [...low.map((channel, i) => channel + (high[i] - channel) * (at % 1)), 255];
}

function highestOf(weights) {
  return weights.flat().reduce((most, weight) => Math.max(most, weight), 0) || 1;
}

function legend(highest) {
  const scale = element("span", { className: "scale", ariaHidden: "true" });
  scale.style.background = `linear-gradient(90deg, ${VIRIDIS.map((one) => `rgb(${one})`)})`;
  return element("p", { className: "legend" }, "0", scale, highest.toFixed(2));
}

function table(block, { weights }) {
  const region = element("div", { className: "box", tabIndex: 0, role: "region" });
  region.ariaLabel = "weights";
  const summary = element("summary", { textContent: "As a table" });
  const details = element("details", { className: "table" }, summary, region);
  const build = () => region.replaceChildren(tableOf(block, weights));
  details.addEventListener("toggle", build, { once: true }); // 40,000 cells only if wanted
  return details;
}

function tableOf({ kind, rows, columns }, weights) {
  const heading = (scope) => (token) => element("th", { scope }, label(token));
  const body = weights.map((row, i) => {
    const cells = row.map((weight) => element("td", { textContent: weight.toFixed(3) }));
    return element("tr", {}, heading("row")(rows[i]), ...cells);
  });
  const head = element("tr", {}, element("td"), ...columns.map(heading("col")));
  const caption = element("caption", { textContent: `${kind} attention: rows attend to columns` });
  return element("table", {}, caption, element("thead", {}, head), element("tbody", {}, ...body));
}
