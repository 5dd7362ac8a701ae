/**
 * Draws one block of attention as the service answers it: one matrix in full, several as a grid of
 * small heatmaps. It asks the service for nothing, so that an exported file can carry it.
 */
import { highestOf, legend } from "view/colours.js";
import { cellsOf } from "view/heatmap.js";
import { element } from "view/labels.js";
import { single } from "view/matrix.js";

const MOST_ACROSS = 8; // heatmaps beside each other

/**
 * Fills the container. `onPick({layers, heads})` is called when a matrix of a grid is chosen;
 * without it the matrix is shown below the grid.
 * Returns {step(last), point(row, column)}: rows after `last` are dimmed; -1 points at no row or no
 * column, so that (2, -1) is a row's token and (-1, 2) a column's.
 */
export function show(container, block, { onPick } = {}) {
  const view = viewOf(block, onPick);
  container.replaceChildren(...view.nodes);
  const step = block.kind === "encoder" ? () => {} : view.step; // its rows are not decoded
  return { step, point: view.point };
}

function viewOf(block, onPick) {
  if (block.rows.length === 0) return nothing(block);
  const matrices = split(block);
  return matrices.length === 1 ? single(block, matrices[0]) : grid(block, matrices, onPick);
}

function nothing({ kind }) {
  const textContent = `${kind} attention: the target has no such step.`;
  return { nodes: [element("p", { textContent })], step: () => {}, point: () => {} };
}

/** Splits a block into its matrices, each {weights, layers, heads, title}. */
function split(block) {
  const { axes, layers, heads, data } = block;
  const [byLayer, byHead] = ["layer", "head"].map((axis) => axes.includes(axis));
  return (byLayer ? data : [data]).flatMap((ofLayer, i) =>
    (byHead ? ofLayer : [ofLayer]).map((weights, j) => {
      const part = { layers: byLayer ? [layers[i]] : layers, heads: byHead ? [heads[j]] : heads };
      return { ...part, weights, title: titleOf(block, part) };
    }),
  );
}

/** Returns a title such as "layer 2; mean of heads 0, 1, 2, 3". */
function titleOf({ reduce_layers, reduce_heads }, { layers, heads }) {
  const name = (what, indices, how) => `${how ? `${how} of ${what}s` : what} ${indices.join(", ")}`;
  return `${name("layer", layers, reduce_layers)}; ${name("head", heads, reduce_heads)}`;
}

function grid(block, matrices, onPick) {
  const highest = highestOf(matrices.flatMap(({ weights }) => weights));
  const picked = element("div");
  const pick = onPick ?? ((matrix) => showBelow(picked, block, matrix));
  const cells = matrices.map(({ weights }) => cellsOf(weights, highest));
  const buttons = matrices.map((matrix, i) => buttonOf(matrix, cells[i].node, pick));
  const list = element("div", { className: "grid", role: "group" }, ...buttons);
  list.ariaLabel = `${block.kind} attention, ${matrices.length} heatmaps`;
  list.style.setProperty("--across", Math.min(MOST_ACROSS, block.shape.at(-3)));
  const hint = `${block.kind} attention: choose a heatmap to see its tokens.`;
  return {
    nodes: [element("p", { textContent: hint }), list, legend(highest), picked],
    step: (last) => cells.forEach((each) => each.step(last)),
    point: () => {},
  };
}

function buttonOf(matrix, cells, pick) {
  const title = element("span", { textContent: matrix.title });
  const button = element("button", { type: "button" }, cells, title);
  button.addEventListener("click", () => pick(matrix));
  return button;
}

function showBelow(container, block, { layers, heads, weights }) {
  show(container, { ...block, layers, heads, axes: block.axes.slice(-2), data: weights });
  container.scrollIntoView({ block: "nearest" });
}
