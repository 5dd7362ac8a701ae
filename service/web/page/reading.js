/**
 * The words of an answer with the source words that they are of, and the source tokens that speak for
 * the answer rather than for another one.
 */
import { element, label, short } from "view/labels.js";
import { JSON_TYPE, latest, post } from "./api.js";
import { withProbability } from "./result.js";

const panel = document.getElementById("reading");
const part = (id) => panel.querySelector(id);
const [source, words, said] = ["#source-words", "#target-words", "#word-said"].map(part);
const [foilSaid, foilTokens] = ["#foil-said", "#foil-tokens"].map(part);

/** Shows the words of a hypothesis of the answer to `request`, which is decoded again for them. */
export function showWords({ stream, top_log_probs, ...request }, hypothesis) {
  return attempt(said, "words", async (signal) => {
    clear(source, words, said);
    const response = await post("v1/decode", { ...request, words: true }, JSON_TYPE, signal);
    const { words: found } = (await response.json()).results[0].hypotheses[hypothesis];
    const parts = showSource(request.source, found.flatMap((word) => word.source ?? []));
    const point = (word) => {
      const starts = (word?.source ?? []).map(({ start }) => start);
      for (const [start, each] of parts) each.classList.toggle("marked", starts.includes(start));
      said.replaceChildren(...(word ? sentence(word) : [hintOf(found)]));
    };
    showTarget(found, point);
    point(null);
  });
}

/** Shows the source, with an element for each of its `words`; returns them by where they start. */
function showSource(text, found) {
  const characters = Array.from(text); // offsets count these, not units of UTF-16
  const ends = new Map(found.map(({ start, end }) => [start, end]));
  const parts = new Map();
  let last = 0;
  source.replaceChildren();
  for (const [start, end] of [...ends].sort(([one], [other]) => one - other)) {
    const word = element("span", { textContent: characters.slice(start, end).join("") });
    source.append(characters.slice(last, start).join(""), word);
    parts.set(start, word);
    last = end;
  }
  source.append(characters.slice(last).join(""));
  return parts;
}

/** Shows a button for each word; `point(word)` is called where the mouse or the focus is. */
function showTarget(found, point) {
  words.replaceChildren(...found.map((word) => {
    const button = element("button", { type: "button" }, withProbability(word, word.log_prob));
    for (const event of ["mouseover", "focus", "click"]) button.addEventListener(event, () => point(word));
    button.addEventListener("blur", () => point(null));
    return element("li", {}, button);
  }));
  const focused = () => found[Array.from(words.children).findIndex((each) => each.contains(document.activeElement))];
  words.onmouseleave = () => point(focused());
}

function hintOf(found) {
  if (found.length === 0) return "No words were generated.";
  const aligned = found.every((word) => word.source);
  return aligned ? "Choose a word to see what it is of." : "This model names no alignment of words.";
}

function sentence(word) {
  const mean = word.mean_log_prob === word.log_prob ? "" : `, ${word.mean_log_prob.toFixed(2)} a token`;
  const numbers = `: log-prob ${word.log_prob.toFixed(2)}${mean}.`;
  if (!word.source) return ["“", short(word), "”", numbers];
  const of = word.source.flatMap((each, i) => [i > 0 ? ", “" : "“", short(each), "”"]);
  return ["“", short(word), "” is of ", ...(of.length > 0 ? of : ["no word of the source"]), numbers];
}

/** Shows the source tokens that speak for the target of `request`, and those that speak for `foil`. */
export function showContrast({ ablate, ...request }, foil) {
  return attempt(foilSaid, "contrast", async (signal) => {
    clear(foilSaid, foilTokens);
    if (!foil.trim()) return [];
    const body = { ...request, contrast: foil.trim() };
    const response = await post("v1/attribution", body, JSON_TYPE, signal).catch(explain(request));
    const [{ contrast, attribution }] = (await response.json()).results;
    const { columns, data } = attribution.find(({ kind }) => kind === "contrast");
    showNumbers(columns, data.at(-1)); // of the whole target
    const lead = contrast.lead.at(-1);
    const [ahead, behind] = lead < 0 ? ["It", "the answer"] : ["The answer", "it"];
    const heads = ablate ? " with all heads on" : "";
    return [`${ahead} leads ${behind} by ${Math.abs(lead).toFixed(2)} in log-prob${heads}. `,
      "Tokens above 0 speak for the answer, those below 0 for the other one."];
  });
}

function showNumbers(tokens, leads) {
  const most = Math.max(...leads.map(Math.abs)) || 1;
  foilTokens.replaceChildren(...tokens.map((token, i) => {
    const textContent = `${leads[i] > 0 ? "+" : ""}${leads[i].toFixed(1)}`;
    const number = element("span", { className: "probability", textContent });
    number.classList.toggle("against", leads[i] < 0);
    number.style.setProperty("--share", Math.abs(leads[i]) / most);
    return element("li", { className: "with-probability" }, label(token), number);
  }));
}

/** Returns a function that throws an error again, in few words if the vocabulary lacks some, or if the
 * foil is the answer. */
function explain({ model }) {
  return (error) => {
    const errors = error.problem?.errors ?? [];
    const same = errors.some(({ detail }) => detail.startsWith("is the target itself"));
    if (same) throw new Error("That is the answer itself.");
    const unknown = errors.flatMap((fault) => fault.unknown ?? []);
    if (unknown.length === 0) throw error;
    throw new Error(`${model} cannot write ${unknown.map((text) => `“${text}”`).join(", ")}.`);
  };
}

/** Shows in `node` what `work` returns, or why it failed. */
async function attempt(node, name, work) {
  try {
    const shown = await work(latest(name));
    if (shown) node.replaceChildren(...shown);
  } catch (error) {
    if (error.name !== "AbortError") node.replaceChildren(error.message);
  }
}

/** Removes what is shown, of an answer that is shown no longer. */
export function clearReading() {
  ["words", "contrast"].forEach(latest);
  clear(source, words, said, foilSaid, foilTokens);
}

function clear(...nodes) {
  nodes.forEach((node) => node.replaceChildren());
}
