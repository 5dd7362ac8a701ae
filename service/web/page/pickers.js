/** The pickers of attention offer what the model has and the service accepts. */
import { element } from "view/labels.js";

const KINDS = {
  encoder: "encoder: source to source",
  decoder: "decoder: target to target",
  cross: "cross: target to source",
};

/** Fills the pickers. Picked options stay if they are still offered; `wanted` overrides them. */
export function offer(controls, { attention, config }, wanted = new URLSearchParams()) {
  const pick = (name, options, preferred) =>
    fill(controls[name], options, [wanted.get(name), controls[name].value, preferred]);
  pick("kind", attention.map((kind) => [kind, KINDS[kind]]), "cross");
  const kind = controls.kind.value;
  const depth = kind === "encoder" ? config.num_encoder_layers : config.num_decoder_layers;
  pick("layer", [["all"], ...indices(depth)], `${depth - 1}`);
  pick("head", [["all"], ...indices(config.num_heads)], "all");
  pick("reduce_heads", [["none"], ["mean"], ["max"]], "mean");
  const refused = refusal(kind, controls.reduce_heads.value);
  pick("reduce_layers", [["none"], ["mean"], ["max"], ["rollout", "rollout", refused]], "none");
}

/** Returns why a rollout cannot be picked; empty if it can. */
function refusal(kind, heads) {
  if (kind === "cross") return "not for cross";
  return heads === "none" ? "reduce heads first" : "";
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

/** Returns the field `attention` of a request to /v1/attention. */
export function selectionOf({ kind, layer, head, reduce_heads, reduce_layers }) {
  const chosen = ({ value }) => (value === "all" ? "all" : [Number(value)]);
  const selection = { kinds: [kind.value], layers: chosen(layer), heads: chosen(head) };
  if (reduce_heads.value !== "none") selection.reduce_heads = reduce_heads.value;
  if (reduce_layers.value !== "none") selection.reduce_layers = reduce_layers.value;
  return selection;
}
