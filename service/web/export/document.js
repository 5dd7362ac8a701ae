/** Shows every result of the document that lies in the same file, block by block. */
import { show } from "view/heatmap.js";
import { element } from "view/labels.js";

const { model, results } = JSON.parse(document.getElementById("document").textContent);
document.getElementById("results").replaceChildren(...results.map(sectionOf));

function sectionOf({ source, target, attention }) {
  const heading = element("h1", { textContent: `${source} → ${target}`, dir: "auto" });
  const caption = element("p", { textContent: `What ${model} attended to.` });
  return element("section", {}, heading, caption, ...attention.map(viewOf));
}

function viewOf(block) {
  const container = element("div");
  show(container, block);
  return container;
}
