/** Heads that are switched off: a field of the form keeps them as "cross.2.1,encoder.0.3". */
import { element } from "view/labels.js";
import { decode } from "./decoding.js";
import { sizesOf } from "./pickers.js";

const $ = (id) => document.getElementById(id);
const HEAD = /^(encoder|decoder|cross)\.\d+\.\d+$/;

const read = ({ ablate }) => ablate.value.split(",").filter((each) => HEAD.test(each));

/** Returns the field `ablate` of a request; none if all heads are on, or the model has no gates. */
export function ablationOf(controls, { ablation }) {
  const ablate = read(controls).map((each) => {
    const [kind, layer, head] = each.split(".");
    return { kind, layer: Number(layer), heads: [Number(head)] };
  });
  return ablation && ablate.length > 0 ? { ablate } : {};
}

/** Forgets the heads of a link that the model lacks. Says which, or nothing, as texts. */
export function dropMissing(controls, model) {
  const missing = read(controls).filter((name) => !has(model, name));
  if (missing.length === 0) return [];
  controls.ablate.value = read(controls).filter((name) => has(model, name));
  return [` The link switches off heads that are not here: ${missing.join(", ")}.`];
}

function has(model, name) {
  const [kind, layer, head] = name.split(".");
  const { depth, heads } = sizesOf(kind, model);
  return model.ablation && Number(layer) < depth && Number(head) < heads;
}

/** Returns whether all heads of a place {layers, heads} are off, of the picked kind. */
export function isOff(controls, place) {
  const off = read(controls);
  return namesOf(controls, place).every((name) => off.includes(name));
}

/** Switches the heads of a place off; on if all of them are off. */
export function toggle(controls, place) {
  const names = namesOf(controls, place);
  const others = read(controls).filter((name) => !names.includes(name));
  controls.ablate.value = isOff(controls, place) ? others : [...others, ...names];
}

function namesOf({ kind }, { layers, heads }) {
  return layers.flatMap((layer) => heads.map((head) => `${kind.value}.${layer}.${head}`));
}

/** Names the button after what it does to the heads of a place; a model may not offer it. */
export function nameSwitch(controls, { ablation }, { layers, heads }) {
  const name = (what, { length, 0: first }) => (length === 1 ? `${what} ${first}` : `all ${what}s`);
  const off = isOff(controls, { layers, heads });
  $("switch").hidden = !ablation;
  $("switch").textContent = `Switch ${off ? "on" : "off"} ${name("layer", layers)}, ${name("head", heads)}`;
}

/** Says what the heads that are off change in an answer, `given` of whose tokens were given. */
export async function showWithout({ request, hypotheses }, given, signal) {
  $("without").hidden = !request.ablate;
  $("without").firstElementChild.replaceChildren();
  if (!request.ablate) return;
  const said = await compare(request, hypotheses[0], given, signal);
  $("without").firstElementChild.replaceChildren(...said);
}

/** Compares an answer without some heads with that of all heads. Returns text and elements. */
async function compare({ ablate, ...request }, hypothesis, given, signal) {
  const whole = await decode({ ...request, stream: undefined }, signal, () => {});
  const [{ text, log_probs }] = whole.hypotheses;
  const sum = (numbers) => numbers.reduce((total, each) => total + each, 0).toFixed(2);
  const now = `Log-prob ${sum(hypothesis.log_probs.slice(given))}; with all heads `;
  const same = text === hypothesis.text;
  const answer = same ? ["the same answer, "] : ["“", element("bdi", { textContent: text }), "”, "];
  return [`${countOf(ablate)} off. `, now, ...answer, `log-prob ${sum(log_probs)}.`];
}

function countOf(ablate) {
  return ablate.length === 1 ? "1 head" : `${ablate.length} heads`;
}
