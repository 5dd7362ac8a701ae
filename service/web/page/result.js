/** Hypotheses with the probability of each token, and the alternatives at a step. */
import { directionOf, element, label } from "view/labels.js";

/** Shows a radio button for each hypothesis; `point(i)` is called at a token of the chosen one. */
export function showHypotheses(list, hypotheses, chosen, point) {
  list.replaceChildren(...hypotheses.map((hypothesis, i) => {
    const radio = element("input", { type: "radio", name: "hypothesis", value: i });
    radio.checked = i === chosen;
    const score = hypothesis.score.toFixed(3);
    radio.ariaLabel = `${hypothesis.text || "nothing"}, score ${score}`;
    const tokens = hypothesis.tokens.map((text, j) => {
      const node = withProbability({ text }, hypothesis.log_probs[j]);
      node.addEventListener("mouseover", () => point(radio.checked ? j : -1));
      return node;
    });
    const dir = directionOf(hypothesis.tokens.map((text) => ({ text })));
    const row = element("span", { className: "tokens", dir }, ...tokens);
    row.addEventListener("mouseleave", () => point(-1));
    const note = element("span", { className: "score", textContent: score, title: "score" });
    return element("label", { className: "hypothesis" }, radio, row, note);
  }));
}

export function showAlternatives(list, alternatives, taken) {
  list.replaceChildren(...alternatives.map(({ token, id, log_prob }) => {
    const node = element("li", {}, withProbability({ text: token }, log_prob));
    node.classList.toggle("taken", id === taken);
    return node;
  }));
}

function withProbability(token, logProb) {
  const probability = Math.exp(logProb);
  const text = probability < 0.005 ? "<0.01" : probability.toFixed(2);
  const number = element("span", { className: "probability", textContent: text });
  number.style.setProperty("--share", probability);
  return element("span", { className: "with-probability" }, label(token), number);
}
