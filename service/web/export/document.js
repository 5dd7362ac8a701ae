/** Shows every result of the document that lies in the same file, block by block. */
import { show } from "view/block.js";
import { element } from "view/labels.js";

const { model, results } = JSON.parse(document.getElementById("document").textContent);
document.getElementById("results").replaceChildren(...results.map(sectionOf));

function sectionOf({ source, target, attention }) {
  const [from, to] = [source, target].map((textContent) => element("bdi", { textContent }));
  const heading = element("h1", {}, from, " → ", to); // neither text reorders the other
  const caption = element("p", { textContent: `Attention of the model ${model}.` });
  return element("section", {}, heading, caption, ...attention.map(viewOf));
}

function viewOf(block) {
  const container = element("div");
  show(container, block);
  return container;
}
