/** The attention of a decoding: a grid of every layer and head, and one matrix in full. */
import { partOf, show, split } from "view/block.js";
import { grid } from "view/grid.js";
import { JSON_TYPE, latest, post } from "./api.js";
import { alignmentOf, selectionOf, sizesOf } from "./pickers.js";

const MOST = 1_000_000; // weights in the grid; longer texts get a grid of blank buttons
const $ = (id) => document.getElementById(id);

let every = null; // all heads of the last decoding and kind: {asked, block, matrices, grid}
let shown = null; // what is drawn: {asked, view}

/**
 * Shows what the pickers select of the attention of `request`, with `sourceTokens` source tokens.
 * One head comes from the answer with all heads; the service computes reductions.
 * `pick({layers, heads})` is called for a choice in the grid, `onStep(row)` for a row; `isOff` tells
 * which heads are off.
 * Returns {step, point}, as view/block.js explains. A view that is shown already is not drawn again.
 */
export async function showAttention(request, sourceTokens, controls, model, { pick, onStep, isOff }) {
  const signal = latest("attention");
  const selection = selectionOf(controls);
  const oneScale = controls.one_scale.checked;
  const asked = JSON.stringify([request, selection, oneScale]);
  if (shown?.asked === asked) return shown.view;
  const small = isSmall(request, sourceTokens, controls, model);
  const single = !selection.reduce_heads && !selection.reduce_layers;
  const [all, reduced] = await Promise.all([
    small ? everyHead(request, selection.kinds, signal) : blank(controls, model),
    single && small ? null : ask(request, selection, signal),
  ]).catch((error) => hide(error, request, signal));
  if (every?.asked !== all.asked || every.oneScale !== oneScale) {
    drawGrid(all, selection.kinds[0], { pick, oneScale, aligning: alignmentOf(controls, model) });
    $("aligning").textContent = selection.kinds[0] === "cross" ? sayAlignment(model) : "";
  }
  const { layers, heads } = placeOf(selection, controls, model);
  const ofLayer = all.matrices[layers[0]];
  const block = reduced ?? partOf(all.block, ofLayer[heads[0]]);
  const byHead = small && layers.length === 1 && heads.length > 1 ? ofLayer : undefined;
  const view = show($("weights"), block, { byHead, onStep, oneScale });
  $("weights").querySelector(".heatmap")?.setAttribute("id", "heatmap");
  $("weights").querySelector(".bipartite")?.setAttribute("id", "bipartite");
  every.grid.press({ layers, heads });
  every.grid.dim(isOff);
  shown = { asked, view: withGrid(view, block) };
  return shown.view;
}

/** Removes what is drawn, of another answer or choice, and throws why there is nothing else. */
function hide(error, { source }, signal) {
  signal.throwIfAborted();
  every = shown = null;
  for (const id of ["overview", "aligning", "weights"]) $(id).replaceChildren();
  throw new Error(`The attention of “${source}” cannot be shown. ${error.message}`);
}

/** Lets the grid follow the steps of the view, if its rows were decoded. */
function withGrid(view, { kind }) {
  if (kind === "encoder") return view;
  const { grid } = every;
  const step = (...rows) => [view, grid].forEach((each) => each.step(...rows));
  return { ...view, step };
}

function isSmall({ target }, source, controls, model) {
  const kind = controls.kind.value;
  const { depth, heads } = sizesOf(kind, model);
  const rows = kind === "encoder" ? source : target[0].length;
  return depth * heads * rows * (kind === "decoder" ? target[0].length : source) <= MOST;
}

/** Returns {asked, block, matrices} of all layers and heads; asks only if they are not there. */
async function everyHead(request, kinds, signal) {
  const selection = { kinds, decimals: 3 };
  const asked = JSON.stringify([request, selection]);
  if (every?.asked === asked) return every;
  const block = await ask(request, selection, signal);
  return { asked, block, matrices: split(block) };
}

function blank(controls, model) {
  const { depth, heads } = sizesOf(controls.kind.value, model);
  const matrices = range(depth).map((layer) =>
    range(heads).map((head) => ({ layers: [layer], heads: [head], weights: null })));
  return { asked: `${model.name} ${controls.kind.value}`, matrices };
}

/** Says which heads align a target with its source: the marked ones. */
function sayAlignment({ alignment }) {
  if (!alignment) return "No head of this model is known to align.";
  const { layers, heads, agreement } = alignment;
  const marked = layers.length * heads.length === 1 ? "The marked head aligns" : "The mean of the marked heads aligns";
  return `${marked}: it agrees with occlusion for ${Math.round(100 * agreement)} % of the tokens.`;
}

function drawGrid({ block, ...all }, kind, { pick, oneScale, aligning }) {
  const how = { pick, oneScale, aligning, reducible: true };
  const drawn = grid({ kind, columns: block?.columns }, all.matrices, how);
  every = { ...all, block, oneScale, grid: drawn };
  $("overview").replaceChildren(every.grid.node);
}

async function ask(request, attention, signal) {
  const response = await post("v1/attention", { ...request, attention }, JSON_TYPE, signal);
  return (await response.json()).results[0].attention[0];
}

/** Returns the indices of the selected layers and heads. */
export function placeOf({ layers, heads }, controls, model) {
  const sizes = sizesOf(controls.kind.value, model);
  return {
    layers: layers === "all" ? range(sizes.depth) : layers,
    heads: heads === "all" ? range(sizes.heads) : heads,
  };
}

function range(count) {
  return [...Array(count).keys()];
}
