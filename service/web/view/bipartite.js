/** The tokens of both axes in two columns, and a line for every weight between them. */
import { LABEL_HEIGHT, element, labels, mark } from "view/labels.js";

const SVG = "http://www.w3.org/2000/svg";
const SMALLEST = 44; // pixels of height
const LARGEST = 720; // unless the labels need more: then the box scrolls
const PITCH = 36; // pixels between labels, where there is space
const FAINT = 0.05; // of the highest weight: fainter lines are drawn when they are pointed at
const FAINTEST = 0.005;

/** Calls `point(row, column)` where the mouse is at a label. Returns {node, step, point, reveal}. */
export function bipartite({ kind, rows, columns }, weights, highest, point) {
  const left = labels(rows, "left", (i) => point(i, -1));
  const right = labels(columns, "right", (i) => point(-1, i));
  const [all, pointed] = [create("g", { class: "all" }), create("g", { class: "pointed" })];
  const lines = create("svg", { viewBox: "0 0 1 1", preserveAspectRatio: "none", role: "img" });
  lines.ariaLabel = `${kind} attention as lines from ${rows.length} to ${columns.length} tokens`;
  lines.append(all, pointed);
  const draw = linesOf(weights, highest);
  const box = boxOf(kind, left, lines, right);
  let last = Infinity;
  let middle = 0; // of the pointed label, as a share of the height
  const step = (to) => {
    last = to;
    mark(left, last, "current-token");
    all.replaceChildren(...draw((row) => row <= last, FAINT));
  };
  step(last);
  return {
    node: figureOf(box),
    step,
    reveal: () => box.scrollTo({ top: middle * box.scrollHeight - box.clientHeight / 2 }),
    point: (row, column) => {
      const chosen = (r, c) => r <= last && [-1, r].includes(row) && [-1, c].includes(column);
      const some = row >= 0 || column >= 0;
      if (some) middle = row < 0 ? (column + 0.5) / columns.length : (row + 0.5) / rows.length;
      all.classList.toggle("faded", some);
      pointed.replaceChildren(...(some ? draw(chosen, FAINTEST) : []));
      mark(left, row, "pointed");
      mark(right, column, "pointed");
    },
  };
}

function figureOf(box) {
  const textContent = "Lines join each row to the columns it attends to";
  return element("figure", { className: "bipartite" }, element("figcaption", { textContent }), box);
}

/** Holds the plot, and scrolls where it is high. */
function boxOf(kind, left, lines, right) {
  const longest = Math.max(left.children.length, right.children.length);
  const height = Math.max(SMALLEST, Math.min(LARGEST, longest * PITCH), longest * LABEL_HEIGHT);
  const plot = element("div", { className: "plot" }, left, lines, right);
  plot.style.height = `${height}px`;
  const box = element("div", { className: "box", tabIndex: 0, role: "group" }, plot);
  box.ariaLabel = `${kind} attention as lines: arrow keys move`;
  return box;
}

/** Draws the lines of the chosen weights that are not too faint, in a square of side 1. */
function linesOf(weights, highest) {
  const middle = (i, count) => (i + 0.5) / count;
  const line = (weight, row, column) => create("line", {
    x1: 0,
    y1: middle(row, weights.length),
    x2: 1,
    y2: middle(column, weights[0].length),
    "stroke-opacity": weight / highest,
    "stroke-width": 0.5 + (2.5 * weight) / highest,
  });
  return (chosen, least) => weights.flatMap((each, row) =>
    each.flatMap((weight, column) =>
      weight >= least * highest && chosen(row, column) ? [line(weight, row, column)] : [],
    ),
  );
}

function create(name, attributes) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}
