/** Texts to decode as buttons, and how an answer of phonemes is pronounced. */
import { element } from "view/labels.js";
import { toIpa } from "./ipa.js";

const pronunciation = document.getElementById("pronunciation");
const say = document.getElementById("say");
// Characters at an end of a word that do not belong to it. A mark belongs to the letter before it.
const PUNCTUATION = /^[^\p{L}\p{M}\p{N}'’-]+|[^\p{L}\p{M}\p{N}'’-]+$/gu;

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

/** Shows an answer in IPA if the model's task says that it writes ARPAbet. */
export function showPronunciation({ task }, source, text) {
  const ipa = /\bARPAbet\b/i.test(task) && text ? toIpa(text) : null;
  pronunciation.hidden = !ipa;
  pronunciation.firstElementChild.textContent = ipa ?? "";
  say.hidden = !("speechSynthesis" in window);
  say.onclick = () => {
    speechSynthesis.cancel();
    speechSynthesis.speak(Object.assign(new SpeechSynthesisUtterance(source), { lang: "en-US" }));
  };
}
