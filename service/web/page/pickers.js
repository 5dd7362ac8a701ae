/** The pickers of attention offer what the model has and the service accepts. */
import { element } from "view/labels.js";

const REDUCTIONS = ["mean", "max", "rollout"];

/** Fills the pickers. Picked options stay if they are still offered; `wanted` overrides them. */
export function offer(controls, model, wanted = new URLSearchParams()) {
  const pick = (name, options, preferred) =>
    fill(controls[name], options, [wanted.get(name), controls[name].value, preferred]);
  pick("kind", model.attention.map((kind) => [kind]), "cross");
  const { depth, heads } = sizesOf(controls.kind.value, model);
  const all = (how) => [how, `${how} of all`];
  const aligning = alignmentOf(controls, model);
  const opening = (many, otherwise) => (many?.length === 1 ? `${many[0]}` : otherwise);
  pick("head", [all("mean"), all("max"), ...indices(heads)], opening(aligning?.heads, "mean"));
  const refused = refusal(controls);
  const reductions = [all("mean"), all("max"), [...all("rollout"), refused]];
  pick("layer", [...reductions, ...indices(depth)], opening(aligning?.layers, aligning ? "mean" : `${depth - 1}`));
}

/** Returns the layers and heads of the picked kind that align, as the model's bundle says; or null. */
export function alignmentOf({ kind }, { alignment }) {
  return kind.value === "cross" ? alignment : null;
}

/** Returns the number of layers of a kind of attention, and of heads in each. */
export function sizesOf(kind, { config }) {
  const { num_encoder_layers, num_decoder_layers, num_heads } = config;
  const depth = kind === "encoder" ? num_encoder_layers : num_decoder_layers;
  return { depth, heads: num_heads };
}

/** Returns why a rollout cannot be picked; empty if it can. */
function refusal({ kind, head }) {
  if (kind.value === "cross") return "not for cross";
  return REDUCTIONS.includes(head.value) ? "" : "needs all heads";
}

function indices(count) {
  return Array.from({ length: count }, (_, i) => [`${i}`]);
}

function fill(select, options, preferred) {
  select.replaceChildren(...options.map(([value, text = value, refused = ""]) =>
    element("option", {
      value,
      textContent: refused ? `${text} (${refused})` : text,
      disabled: refused !== "",
    }),
  ));
  const free = options.filter(([, , refused]) => !refused).map(([value]) => value);
  select.value = preferred.find((value) => free.includes(value)) ?? free[0];
}

/** Returns the field `attention` of a request for what is picked. */
export function selectionOf({ kind, layer, head }) {
  const selection = { kinds: [kind.value], layers: "all", heads: "all" };
  if (REDUCTIONS.includes(head.value)) selection.reduce_heads = head.value;
  else selection.heads = [Number(head.value)];
  if (REDUCTIONS.includes(layer.value)) selection.reduce_layers = layer.value;
  else selection.layers = [Number(layer.value)];
  return selection;
}

/** Picks a place of the grid; all layers or heads are reduced as before, or by their mean. */
export function pickPlace({ layer, head }, { layers, heads }) {
  const reduction = ({ value }) => (REDUCTIONS.includes(value) ? value : "mean");
  head.value = heads.length === 1 ? heads[0] : reduction(head);
  const how = reduction(layer);
  const all = how === "rollout" && heads.length === 1 ? "mean" : how;
  layer.value = layers.length === 1 ? layers[0] : all;
}
