/** One matrix as a heatmap: coloured cells, the labels of both axes and a cursor. */
import { paint } from "view/colours.js";
import { LABEL_HEIGHT, attentionOf, directionOf, element, labels, mark, onLabel } from "view/labels.js";
import { pooled } from "view/shares.js";

const LARGEST_CELL = 44; // pixels
const NARROWEST_CELL = 4; // more columns than fit are scrolled
const LOWEST_CELL = 8; // and more rows
const MOST_HEIGHT = 0.85; // of the window, as in the style sheet
const LETTER = 8; // pixels of width, about
const UPRIGHT = 13; // pixels, the line of a label that stands upright

/**
 * Draws the `shares` of a matrix. Calls `point(row, column)` where the mouse moves, and `onStep(row)`, if any, at a click.
 * Returns {node, step, point, reveal}.
 */
export function heatmap(block, { weights, title }, shares, { point, onStep }) {
  const { rows, columns } = block;
  const name = `${attentionOf(block)}, ${title}`;
  const cells = cellsOf(shares);
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
    step: (current, last) => {
      cells.step(current, last);
      mark(left, current, "current-token");
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

/**
 * Draws the cells without labels, at most `most` along a side. `step(current, last)` marks a row,
 * and dims the rows after `last`.
 */
export function cellsOf(shares, most = Infinity) {
  const canvas = paint(pooled(shares, most));
  const later = element("div", { className: "later", hidden: true });
  const current = element("div", { className: "current", hidden: true });
  const step = (row, last) => {
    later.hidden = last >= shares.length;
    cover(current, shares, row, -1);
    later.style.inset = `${(100 * (last + 1)) / shares.length}% 0 0`;
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

/**
 * Makes cells as large as the width and, if that leaves them legible, the height allow. There are as
 * many labels as have room. The lines next to the heatmap have the same rows: their style sheet
 * reads the sizes from the parent.
 */
function fit(node, left, top) {
  const views = node.parentElement;
  const width = (node.clientWidth - left.offsetWidth - 16) / top.children.length;
  const column = Math.max(NARROWEST_CELL, Math.min(LARGEST_CELL, Math.floor(4 * width) / 4));
  thinColumns(top, column);
  const height = (MOST_HEIGHT * innerHeight - top.offsetHeight - 16) / left.children.length;
  const wanted = Math.max(LABEL_HEIGHT, Math.floor(column));
  const row = height < LOWEST_CELL ? wanted : Math.min(wanted, Math.floor(4 * height) / 4);
  for (const axis of views.querySelectorAll(".rows, .left, .right")) thin(axis, LABEL_HEIGHT / row);
  views.style.setProperty("--column", `${column}px`);
  views.style.setProperty("--cell", `${row}px`);
  views.style.setProperty("--top", `${top.offsetHeight}px`);
}

/** Turns the labels of columns if more of them then have room. */
function thinColumns(top, column) {
  const longest = Math.max(...Array.from(top.children, (one) => one.textContent.length));
  const upright = Math.ceil(UPRIGHT / column) < Math.ceil((longest * LETTER) / column);
  top.classList.toggle("upright", upright);
  thin(top, (upright ? UPRIGHT : longest * LETTER) / column);
}

/** Hides all but every second, third, ... label if each needs the room of `needed` labels. */
function thin(axis, needed) {
  const every = Math.ceil(needed);
  Array.from(axis.children).forEach((one, i) => one.classList.toggle("thinned", i % every !== 0));
}
