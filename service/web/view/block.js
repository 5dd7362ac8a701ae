/**
 * Draws one block of attention as the service answers it: one matrix in full, several as a grid of
 * small heatmaps. It asks the service for nothing, so that an exported file can carry it.
 */
import { legend } from "view/colours.js";
import { grid } from "view/grid.js";
import { attentionOf, element } from "view/labels.js";
import { single } from "view/matrix.js";

/**
 * Fills the container with one matrix, or with a grid below which the chosen matrix is shown.
 * `byHead` are the matrices of the heads that the one matrix combines: each has lines of its colour.
 * `onStep(row)` is called when a row that was decoded is chosen. With `oneScale` all rows have the
 * same scale of colours, else each its own.
 * Returns {step(current, last), point(row, column)}: the row `current` is marked, rows after `last`
 * are dimmed; -1 points at no row or no column, so that (2, -1) is a row's token and (-1, 2) a
 * column's.
 */
export function show(container, block, { byHead, onStep, oneScale = false } = {}) {
  const decoded = block.kind !== "encoder"; // the rows of the source are not decoded
  const view = viewOf(block, { byHead, oneScale, onStep: decoded ? onStep : undefined });
  container.replaceChildren(...view.nodes);
  return { step: decoded ? view.step : () => {}, point: view.point };
}

function viewOf(block, options) {
  if (block.rows.length === 0) return nothing(block);
  const matrices = split(block);
  const [first] = matrices.flat();
  return matrices.flat().length === 1 ? single(block, first, options) : overview(block, matrices, options);
}

function nothing(block) {
  const textContent = `${attentionOf(block)}: the target has no such step.`;
  return { nodes: [element("p", { textContent })], step: () => {}, point: () => {} };
}

/** Splits a block into layers, each a list of heads: {weights, layers, heads, title}. */
export function split(block) {
  const { axes, layers, heads, data } = block;
  const [byLayer, byHead] = ["layer", "head"].map((axis) => axes.includes(axis));
  return (byLayer ? data : [data]).map((ofLayer, i) =>
    (byHead ? ofLayer : [ofLayer]).map((weights, j) => {
      const part = { layers: byLayer ? [layers[i]] : layers, heads: byHead ? [heads[j]] : heads };
      return { ...part, weights, title: titleOf(block, part) };
    }),
  );
}

/** Returns the block of one of its matrices. */
export function partOf(block, { layers, heads, weights }) {
  return { ...block, layers, heads, axes: block.axes.slice(-2), data: weights };
}

/** Returns a title such as "layer 2; mean of heads 0–3", as service/formats/heatmaps.py does. */
function titleOf({ reduce_layers, reduce_heads }, { layers, heads }) {
  const name = (what, indices, how) => `${how ? `${what}s` : what} ${listed(indices)}`;
  const [ofLayers, ofHeads] = [name("layer", layers, reduce_layers), name("head", heads, reduce_heads)];
  const how = (reduction) => (reduction ? `${reduction} of ` : "");
  const joined = reduce_layers && reduce_layers === reduce_heads ? ", " : `; ${how(reduce_heads)}`;
  return how(reduce_layers) + ofLayers + joined + ofHeads;
}

function listed(indices) {
  const together = indices.length > 2 && indices.every((index, i) => index === indices[0] + i);
  return together ? `${indices[0]}–${indices.at(-1)}` : indices.join(", ");
}

function overview(block, matrices, { oneScale }) {
  const picked = element("div");
  const all = matrices.flat();
  const pick = ({ layers, heads }) => {
    const matrix = all.find((each) => `${each.layers};${each.heads}` === `${layers};${heads}`);
    small.press(matrix);
    show(picked, partOf(block, matrix), { oneScale });
    picked.scrollIntoView({ block: "nearest" });
  };
  const small = grid(block, matrices, { pick, oneScale });
  const textContent = `${attentionOf(block)}: choose a heatmap to see its tokens.`;
  const hint = element("p", { textContent });
  small.node.append(legend(block));
  return { nodes: [hint, small.node, picked], step: small.step, point: () => {} };
}
