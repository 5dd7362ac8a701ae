/** A document: a source whose sentences are decoded one by one. */
import { element } from "view/labels.js";
import { JSON_TYPE, post } from "./api.js";

/** Returns the whole target of a request that splits its source, and [source, target] of each
 * sentence. */
export async function decodeDocument(request, signal) {
  const { stream, top_log_probs, ...asked } = request;
  const body = { ...asked, num_hypotheses: 1 };
  const answer = await (await post("v1/decode", body, JSON_TYPE, signal)).json();
  const [{ hypotheses, sentences }] = answer.results;
  const characters = Array.from(request.source); // offsets count these, not units of UTF-16
  const pairs = sentences.map(({ start, end, hypotheses: [best] }) =>
    [characters.slice(start, end).join(""), best.text]);
  return { text: hypotheses[0].text, pairs };
}

/** Shows the sentences with their targets; `open(source)` is called at a click on one. */
export function showSentences(list, pairs, open) {
  list.replaceChildren(...pairs.map(([source, target]) => {
    const button = element("button", { type: "button", textContent: source, dir: "auto" });
    button.addEventListener("click", () => open(source));
    return element("li", {}, button, element("span", { textContent: target, dir: "auto" }));
  }));
}
