/** Hypotheses with the probability of each token, and the alternatives at a step. */
import { directionOf, element, label, short } from "view/labels.js";

/**
 * Shows a radio button for each hypothesis, of which `chosen` is checked; the first `given` tokens
 * were not decoded. `point(i)` is called where the mouse is at a token of the checked one, and
 * `pick(i, j)` at a click on token j of hypothesis i.
 */
export function showHypotheses(list, hypotheses, { chosen, given, point, pick }) {
  list.replaceChildren(...hypotheses.map((hypothesis, i) => {
    const radio = element("input", { type: "radio", name: "hypothesis", value: i });
    radio.checked = i === chosen;
    const score = hypothesis.score.toFixed(3);
    radio.ariaLabel = `${hypothesis.text || "nothing"}, score ${score}`;
    const tokens = hypothesis.tokens.map((text, j) => {
      const node = withProbability({ text }, hypothesis.log_probs[j]);
      node.classList.toggle("given", j < given);
      node.classList.toggle("branched", j === given - 1);
      node.addEventListener("mouseover", () => point(radio.checked ? j : -1));
      node.addEventListener("click", (event) => {
        event.preventDefault(); // the label would pick the hypothesis without its step
        pick(i, j);
      });
      return node;
    });
    const dir = directionOf(hypothesis.tokens.map((text) => ({ text })));
    const row = element("span", { className: "tokens", dir }, ...tokens);
    row.addEventListener("mouseleave", () => point(-1));
    const note = element("span", { className: "score", textContent: score, title: "score" });
    if (hypothesis.finish_reason === "length") row.append(element("span", {}, "cut off"));
    return element("label", { className: "hypothesis" }, radio, row, note);
  }));
}

/** Returns the step of the least probable token that is not special: nothing can follow those. */
export function leastCertain({ token_ids, log_probs }, special) {
  const steps = [...log_probs.keys()].filter((step) => !special.includes(token_ids[step]));
  return steps.sort((one, other) => log_probs[one] - log_probs[other])[0] ?? 0;
}

/** Shows the alternatives of the token `taken`; `branch(id)` is called at a click on another one. */
export function showAlternatives(list, alternatives, taken, special, branch) {
  list.replaceChildren(...alternatives.map(({ token, id, log_prob }) => {
    const content = withProbability({ text: token }, log_prob);
    if (id === taken) return element("li", { className: "taken" }, content);
    if (special.includes(id)) return element("li", {}, content);
    const button = element("button", { type: "button", title: "Decode on from this token" }, content);
    button.addEventListener("click", () => branch(id));
    return element("li", {}, button);
  }));
}

/** Returns the question that a branch answers, as text and elements; its last token was chosen. */
export function whatIf(tokens) {
  const [before, last] = [null, null, ...tokens].slice(-2).map((text) => text !== null && short({ text }));
  return before ? ["What if ", last, " followed ", before, "?"] : ["What if it began with ", last, "?"];
}

/** Shows a token with its probability, as a number and a bar. */
export function withProbability(token, logProb) {
  const probability = Math.exp(logProb);
  const text = probability < 0.005 ? "<0.01" : probability.toFixed(2);
  const number = element("span", { className: "probability", textContent: text });
  number.style.setProperty("--share", probability);
  return element("span", { className: "with-probability" }, label(token), number);
}
