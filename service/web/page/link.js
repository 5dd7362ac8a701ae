/** What a link, Back or Forward asks the form for, and what of it the page does not have. */
import { short } from "view/labels.js";

const BOXES = ["stream", "one_scale", "split"];
const ASKED = ["source", "beam_size", "num_hypotheses"];
const TYPED = [...ASKED, "foil"];
const HIDDEN = ["target_prefix", "ablate"];
// The fields that an answer depends on. If they differ, its steps are not those of the link.
const OF_ANSWER = [...ASKED, "model", "source_language", "target_language", "ablate"];

/**
 * Fills the form with what is `wanted`. When the page is `starting`, it sets only the defaults of
 * fields: browsers then keep what was typed before.
 */
export function fillForm(controls, wanted, { starting }) {
  const [value, checked] = starting ? ["defaultValue", "defaultChecked"] : ["value", "checked"];
  for (const name of TYPED) if (wanted.has(name)) controls[name][value] = wanted.get(name);
  for (const name of BOXES) controls[name][checked] = wanted.has(name);
  for (const name of HIDDEN) controls[name].value = wanted.get(name) ?? "";
}

/** Returns whether the form asks for the answer of the link. */
export function asksFor(controls, wanted) {
  const asked = OF_ANSWER.filter((name) => wanted.has(name) && !controls[name].disabled);
  return asked.every((name) => controls[name].value === wanted.get(name));
}

/** Says, as text and elements, what a link asks for and no picker has; the model first. */
export function unmet(form, wanted) {
  const pickers = Array.from(form.querySelectorAll("select:enabled[name]"));
  const lost = pickers.find(({ name, value }) => wanted.get(name) && wanted.get(name) !== value);
  if (!lost) return [];
  const [what, asked] = [lost.name.replace("_", " "), short({ text: wanted.get(lost.name) })];
  return [`The link asks for the ${what} “`, asked, `”, which is not here. Shown instead: ${lost.value}.`];
}
