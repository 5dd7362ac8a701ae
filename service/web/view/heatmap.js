/** One matrix as a heatmap: coloured cells, the labels of both axes and a cursor. */
import { paint } from "view/colours.js";
import { LABEL_HEIGHT, directionOf, element, labels, mark, onLabel } from "view/labels.js";

const LARGEST_CELL = 44; // pixels
const LETTER = 8; // pixels of width, about

/**
 * Calls `point(row, column)` where the mouse moves, and `onStep(row)`, if any, at a click.
 * Returns {node, step, point, reveal}.
 */
export function heatmap({ kind, rows, columns }, { weights, title }, highest, point, onStep) {
  const name = `${kind} attention, ${title}`;
  const cells = cellsOf(weights, highest);
  const cursor = element("div", { className: "cursor" });
  cells.node.append(cursor);
  describe(cells, name, weights);
  cells.node.addEventListener("mousemove", (event) => point(...cellAt(event, weights)));
  const left = labels(rows, "rows", (i) => point(i, -1));
  const top = labels(columns, "columns", (i) => point(-1, i));
  if (onStep) {
    onLabel(left, onStep);
    cells.node.addEventListener("click", (event) => onStep(cellAt(event, weights)[0]));
  }
  const order = directionOf(columns) === "rtl" ? "; the text's first token is on the left" : "";
  const node = figureOf(name + order, cells.node, left, top);
  return {
    node,
    step: (last) => {
      cells.step(last);
      mark(left, last, "current-token");
    },
    reveal: () => cursor.scrollIntoView({ block: "nearest", inline: "nearest" }),
    point: (row, column) => {
      cover(cursor, weights, row, column);
      mark(left, row, "pointed");
      mark(top, column, "pointed");
    },
  };
}

/** Describes the heatmap to screen readers, and lets them pass the arrow keys on to it. */
function describe({ node, canvas }, name, weights) {
  const size = `${weights.length} rows, ${weights[0].length} columns`;
  // Without this role screen readers keep the arrow keys to themselves.
  Object.assign(node, { tabIndex: 0, role: "application", ariaLabel: `${name}: arrow keys move` });
  Object.assign(canvas, { role: "img", ariaLabel: `${name}: ${size}, as a table below` });
}

function figureOf(name, cells, left, top) {
  const corner = element("div", { className: "corner" });
  const plot = element("div", { className: "plot" }, corner, top, left, cells);
  const box = element("div", { className: "box" }, plot);
  const caption = element("figcaption", { textContent: name });
  const node = element("figure", { className: "heatmap" }, caption, box);
  new ResizeObserver(() => fit(node, left, top)).observe(node);
  return node;
}

/** Draws the cells without labels, as in a grid. `step(last)` dims the rows after `last`. */
export function cellsOf(weights, highest) {
  const canvas = paint(weights, highest);
  const later = element("div", { className: "later", hidden: true });
  const current = element("div", { className: "current", hidden: true });
  const step = (last) => {
    current.hidden = later.hidden = false;
    cover(current, weights, last, -1);
    later.style.inset = `${(100 * (last + 1)) / weights.length}% 0 0`;
  };
  return { node: element("div", { className: "cells" }, canvas, later, current), canvas, step };
}

function cellAt({ clientX, clientY, currentTarget }, weights) {
  const { left, top, width, height } = currentTarget.getBoundingClientRect();
  const within = (part, count) => Math.max(0, Math.min(count - 1, Math.floor(part * count)));
  const row = within((clientY - top) / height, weights.length);
  return [row, within((clientX - left) / width, weights[0].length)];
}

/** Lays the node over a cell, or over a whole row or column. */
function cover(node, weights, row, column) {
  const [height, width] = [100 / weights.length, 100 / weights[0].length];
  node.hidden = row < 0 && column < 0;
  node.style.inset = `${Math.max(0, row) * height}% auto auto ${Math.max(0, column) * width}%`;
  node.style.height = `${row < 0 ? 100 : height}%`;
  node.style.width = `${column < 0 ? 100 : width}%`;
}

/** Makes cells as large as the width allows, and turns labels that would overlap. The lines beside
 * the heatmap have the same rows: their style sheet reads the sizes from the parent. */
function fit(node, left, top) {
  const width = (node.clientWidth - left.offsetWidth - 16) / top.children.length;
  const cell = Math.floor(Math.max(LABEL_HEIGHT, Math.min(LARGEST_CELL, width)));
  const longest = Math.max(...Array.from(top.children, (one) => one.textContent.length));
  node.parentElement.style.setProperty("--cell", `${cell}px`);
  top.classList.toggle("upright", longest * LETTER > cell);
  node.parentElement.style.setProperty("--top", `${top.offsetHeight}px`);
}
