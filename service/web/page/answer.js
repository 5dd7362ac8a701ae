/** The answer below the source: its text, whether it was cut off, and how phonemes are pronounced. */
import { element } from "view/labels.js";
import { toIpa } from "./ipa.js";

const $ = (id) => document.getElementById(id);

/** Shows a text that is still being decoded; its `tentative` end may yet change. */
export function showText(stable, tentative = "") {
  const rest = element("span", { className: "tentative", textContent: tentative });
  $("output").replaceChildren(stable, rest);
  $("pronunciation").hidden = $("cut").hidden = true; // they belong to a whole answer
  $("answer").hidden = false;
}

/** Shows a whole answer, with its pronunciation if the model's task says that it writes ARPAbet. */
export function showAnswer({ task }, source, { text, tokens, finish_reason }) {
  showText(text);
  $("cut").hidden = finish_reason !== "length";
  $("cut").textContent = `Cut off after ${tokens.length} tokens, the limit: the model had not ended.`;
  const ipa = /\bARPAbet\b/i.test(task) && text ? toIpa(text) : null;
  $("pronunciation").hidden = !ipa;
  $("pronunciation").firstElementChild.textContent = ipa ?? "";
  $("say").hidden = !("speechSynthesis" in window);
  $("say").onclick = () => {
    speechSynthesis.cancel();
    speechSynthesis.speak(Object.assign(new SpeechSynthesisUtterance(source), { lang: "en-US" }));
  };
}
