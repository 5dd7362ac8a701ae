/** The tokens of both axes in two columns, and lines for the weights between them. */
import { attentionOf, element, labels, mark, onLabel } from "view/labels.js";
import { highestOf, sharesOf, strongest } from "view/shares.js";

const SVG = "http://www.w3.org/2000/svg";
const FAINTEST = 0.01; // share of a scale of which no line is drawn
const SPREAD = 0.6; // of a row: the lines of all heads between the same tokens
// Okabe and Ito, "Color Universal Design" (2008), with grey in place of black and yellow, which one
// of the themes would hide. Further heads repeat the colours with dashes.
const COLOURS = ["#e69f00", "#56b4e9", "#009e73", "#d55e00", "#cc79a7", "#0072b2", "#8c8c8c"];
const DASHES = ["none", "6 3", "2 3"];

/**
 * Draws lines for each {weights, heads} of `series`, in a colour each if there are several: the
 * strongest of each row, and where a row or column is pointed at all of it. Calls `point(row, column)` where the mouse is at a label, and `onStep(row)` at a click on a row's.
 * Returns {node, step, point, reveal}.
 */
export function bipartite(block, series, { point, onStep, oneScale }) {
  const [name, { rows, columns }] = [attentionOf(block), block];
  const left = labels(rows, "left", (i) => point(i, -1));
  const right = labels(columns, "right", (i) => point(-1, i));
  if (onStep) onLabel(left, onStep);
  const longest = Math.max(rows.length, columns.length);
  const [all, pointed] = [create("g", { class: "all" }), create("g", { class: "pointed" })];
  const viewBox = `0 0 1 ${longest}`;
  const lines = create("svg", { viewBox, preserveAspectRatio: "none", role: "img" });
  lines.ariaLabel = `${name} as lines from ${rows.length} to ${columns.length} tokens`;
  lines.append(all, pointed);
  const draw = linesOf(columns, series, oneScale);
  const box = boxOf(name, left, lines, right);
  let last = Infinity;
  let middle = 0; // of the pointed label, as a share of the height
  const step = (current, to) => {
    last = to;
    mark(left, current, "current-token");
    all.replaceChildren(...draw((row, column, best) => row <= last && best));
  };
  step(-1, last);
  return {
    node: figureOf(box, series),
    step,
    reveal: () => box.scrollTo({ top: middle * box.scrollHeight - box.clientHeight / 2 }),
    point: (row, column) => {
      const chosen = (r, c) => r <= last && [-1, r].includes(row) && [-1, c].includes(column);
      const some = row >= 0 || column >= 0;
      if (some) middle = ((row < 0 ? column : row) + 0.5) / longest;
      all.classList.toggle("faded", some);
      pointed.replaceChildren(...(some ? draw(chosen) : []));
      mark(left, row, "pointed");
      mark(right, column, "pointed");
    },
  };
}

function figureOf(box, series) {
  const textContent = "The strongest as lines";
  const caption = element("figcaption", { textContent });
  const notes = element("div", {}, ...(series.length > 1 ? [headLegend(series)] : []));
  return element("figure", { className: "bipartite" }, caption, box, notes);
}

/** Names the head of each colour. */
function headLegend(series) {
  const each = series.map(({ heads }, i) => {
    const line = create("svg", { viewBox: "0 0 16 4", class: "swatch", "aria-hidden": "true" });
    line.append(create("line", { x1: 0, y1: 2, x2: 16, y2: 2, "stroke-width": 3, ...inkOf(i) }));
    return element("span", {}, line, `head ${heads[0]}`);
  });
  return element("p", { className: "legend heads" }, ...each);
}

function inkOf(i) {
  const dashes = DASHES[Math.floor(i / COLOURS.length) % DASHES.length];
  return { stroke: COLOURS[i % COLOURS.length], "stroke-dasharray": dashes };
}

/** Holds the plot, whose rows are as high as those of the heatmap, and scrolls where it is high. */
function boxOf(name, left, lines, right) {
  const plot = element("div", { className: "plot" }, left, lines, right);
  const box = element("div", { className: "box", tabIndex: 0, role: "group" }, plot);
  box.ariaLabel = `${name} as lines: arrow keys move`;
  return box;
}

/**
 * Returns a function that draws the lines of which `chosen(row, column, best)` is true; `best` says
 * whether a line is the strongest of its row. A row or column is 1 high.
 */
function linesOf(columns, series, oneScale) {
  const matrices = series.map(({ weights }) => weights);
  const highest = oneScale ? highestOf(matrices.flat()) : undefined;
  const best = strongest(columns, matrices, { oneScale });
  const line = (share, row, column, shift, ink) => create("line", {
    x1: 0,
    y1: row + 0.5 + shift,
    x2: 1,
    y2: column + 0.5 + shift,
    "stroke-opacity": share,
    "stroke-width": 0.5 + 2.5 * share,
    ...ink,
  });
  const several = series.length > 1;
  const shares = matrices.map((weights) => sharesOf(columns, weights, highest));
  return (chosen) => shares.flatMap((matrix, i) => {
    const ink = several ? inkOf(i) : {};
    const shift = several ? SPREAD * ((i + 0.5) / series.length - 0.5) : 0;
    const isBest = (row, column) => best[row][0] === i && best[row][1] === column;
    return matrix.flatMap((each, row) => each.flatMap((share, column) =>
      share >= FAINTEST && chosen(row, column, isBest(row, column))
        ? [line(share, row, column, shift, ink)]
        : [],
    ));
  });
}

function create(name, attributes) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}
