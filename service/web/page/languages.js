/** The pickers of languages: the codes that a model has, with their names in English. */
import { element } from "view/labels.js";

const FIELDS = ["source_language", "target_language"];
const names = new Intl.DisplayNames("en", { type: "language", fallback: "none" });

/**
 * Fills the pickers; a side without languages has none. At first, English is decoded into the
 * model's default, the reader's language or French. A picked language stays picked if the next
 * model has it, even under another code; `wanted` overrides it.
 */
export function offerLanguages(controls, languages, wanted = new URLSearchParams()) {
  const { source, target, default_target: own } = languages;
  const pick = (name, codes, likely) => {
    const preferred = [wanted.get(name), controls[name].value].filter(Boolean);
    fill(controls[name], codes, [...preferred, ...likely, ...codes]);
  };
  pick("source_language", source, ["en", ...navigator.languages]);
  const known = source.length > 0 ? nameOf(controls.source_language.value) : "";
  const others = [...navigator.languages, "fr", ...target].filter((code) => nameOf(code) !== known);
  pick("target_language", target, own ? [own, ...others] : others);
}

/** Keeps the options of a picker that it hides: the next model may have them again. */
function fill(select, codes, preferred) {
  select.disabled = codes.length === 0;
  select.parentElement.hidden = select.disabled;
  if (select.disabled) return;
  const texts = codes.map((code) => [code, textOf(code)]);
  texts.sort(([, one], [, other]) => one.localeCompare(other, "en"));
  select.replaceChildren(...texts.map(([value, textContent]) =>
    element("option", { value, textContent })));
  const same = (language) => codes.find((code) => code === language)
    ?? codes.find((code) => nameOf(code) === nameOf(language));
  select.value = preferred.map(same).find(Boolean);
}

function textOf(code) {
  const name = nameOf(code);
  return name === code ? code : `${name} (${code})`;
}

/**
 * Returns the English name of the language of a code such as "eng_Latn" or "en_XX", with its script
 * if that is unusual; the code itself if it has no name.
 */
function nameOf(code) {
  try {
    const { language, script } = new Intl.Locale(code.match(/[a-z0-9]+/gi).join("-"));
    const usual = new Intl.Locale(language).maximize().script;
    return names.of(!script || script === usual ? language : `${language}-${script}`) ?? code;
  } catch {
    return code; // not of BCP 47
  }
}

/** Returns the fields of a request for the languages that are picked. */
export function languagesOf(controls) {
  const offered = FIELDS.filter((name) => !controls[name].disabled);
  return Object.fromEntries(offered.map((name) => [name, controls[name].value]));
}
