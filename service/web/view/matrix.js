/**
 * One matrix of attention: a heatmap and lines, which show the same place; that place in words; a
 * table. The mouse and the arrow keys move the place.
 */
import { bipartite } from "view/bipartite.js";
import { legend } from "view/colours.js";
import { heatmap } from "view/heatmap.js";
import { element, short } from "view/labels.js";
import { highestOf, sharesOf } from "view/shares.js";
import { table } from "view/table.js";

const WIDE = 36; // columns that need the whole width: the views come one above the other
const NOWHERE = [-1, -1];
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

/** Returns {nodes, step, point}; these and the options are explained in block.js. */
export function single(block, matrix, { byHead, onStep, oneScale }) {
  const { weights } = matrix;
  const highest = oneScale ? highestOf(weights) : undefined;
  const readout = element("p", { className: "readout", ariaLive: "polite" });
  let place = NOWHERE;
  const point = (...next) => {
    place = next;
    views.forEach((view) => view.point(...place));
    readout.replaceChildren(...sentence(block, weights, onStep, ...place));
  };
  const views = [
    heatmap(block, matrix, sharesOf(block.columns, weights, highest), { point, onStep }),
    bipartite(block, byHead ?? [matrix], { point, onStep, oneScale }),
  ];
  views[0].node.append(element("div", {}, readout, legend(block, highest)));
  const both = sideBySide(views, weights, point);
  both.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && place[0] >= 0) onStep?.(place[0]);
    const next = moved(place, event.key, weights);
    if (!next) return;
    event.preventDefault();
    point(...next);
    views.forEach((view) => view.reveal());
  });
  point(...NOWHERE);
  return {
    nodes: [both, table(block, weights)],
    step: (...rows) => views.forEach((view) => view.step(...rows)),
    point,
  };
}

function sideBySide(views, weights, point) {
  const both = element("div", { className: "views" }, ...views.map((view) => view.node));
  both.classList.toggle("wide", weights[0].length > WIDE);
  both.style.setProperty("--rows", weights.length);
  both.style.setProperty("--columns", weights[0].length);
  both.addEventListener("mouseleave", () => point(...NOWHERE));
  return both;
}

/** Returns the next place, or null. Before the first cell of a row or column lies its token. */
function moved([row, column], key, weights) {
  if (key === "Escape") return NOWHERE;
  if (!MOVES[key]) return null;
  if (row < 0 && column < 0) return [0, 0];
  const clamp = (place, last) => Math.min(Math.max(place, -1), last);
  const next = [
    clamp(row + MOVES[key][0], weights.length - 1),
    clamp(column + MOVES[key][1], weights[0].length - 1),
  ];
  return Math.max(...next) < 0 ? null : next;
}

/** Describes the place in text and elements: a cell, a row's or column's token, or how to choose. */
function sentence({ rows, columns }, weights, onStep, row, column) {
  if (row < 0 && column < 0) {
    const hint = "Point at a cell or a token, or move with the arrow keys.";
    return [onStep ? `${hint} A click or Enter goes to the step of a row.` : hint];
  }
  if (row < 0) {
    const heeding = largest(weights.map((each) => each[column]), rows);
    return [`column ${column}: `, short(columns[column]), " is attended to by ", ...heeding];
  }
  const heeded = column < 0
    ? largest(weights[row], columns)
    : [short(columns[column]), ` with ${weights[row][column].toFixed(2)}`];
  return [`row ${row}: `, short(rows[row]), " attends to ", ...heeded];
}

/** Names the three largest of one row or column, with their tokens and places. */
function largest(weights, tokens) {
  const places = [...weights.keys()].sort((a, b) => weights[b] - weights[a]).slice(0, 3);
  return places.flatMap((i, order) => [
    order > 0 ? ", " : "",
    short(tokens[i]),
    ` (${i}) with ${weights[i].toFixed(2)}`,
  ]);
}
