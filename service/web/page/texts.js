/** Texts to decode as buttons, and how an answer of phonemes is pronounced. */
import { element } from "view/labels.js";
import { toIpa } from "./ipa.js";

const pronunciation = document.getElementById("pronunciation");
const say = document.getElementById("say");

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
