/** Texts to decode: the field of the source, and buttons. */
import { element } from "view/labels.js";

// Characters at an end of a word that do not belong to it. A mark belongs to the letter before it.
const PUNCTUATION = /^[^\p{L}\p{M}\p{N}'’-]+|[^\p{L}\p{M}\p{N}'’-]+$/gu;

const SEVERAL = /\n|[.!?…。！？]["'”’)]*\s+\S/; // the end of a sentence, and another one
const LONG = 60; // letters that fill a line of the largest font

/** Shows a word in large letters, and gives a long text the room that it needs. Offers to split a
 * text that may have several sentences. */
export function fitSource(form) {
  const { source, split } = form.elements;
  const long = source.value.length > LONG;
  split.parentElement.hidden = !(long || split.checked || SEVERAL.test(source.value.trim()));
  form.classList.toggle("long", long);
  source.rows = long ? 5 : 1; // for browsers that do not fit it to its text
}

/** Shows a button for each {source, source_language, target_language}, which decodes it. */
export function offerTexts(list, texts, controls, decode) {
  list.replaceChildren(...texts.map((fields) => {
    const button = element("button", { type: "button", textContent: fields.source });
    button.addEventListener("click", () => {
      for (const [name, value] of Object.entries(fields)) if (value) controls[name].value = value;
      controls.source.focus();
      decode();
    });
    return button;
  }));
}

/** Returns the different words of a text, without the punctuation around them. */
export function wordsOf(text) {
  const words = text.split(/\s+/).map((word) => word.replace(PUNCTUATION, ""));
  return [...new Set(words.filter((word) => /[\p{L}\p{N}]/u.test(word)))];
}
