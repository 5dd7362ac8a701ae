/** The weights of one matrix as a table: for screen readers, or to read the numbers. */
import { attentionOf, element, label } from "view/labels.js";

export function table(block, weights) {
  const region = element("div", { className: "box", tabIndex: 0, role: "region" });
  region.ariaLabel = block.measure === "norm" ? "norms" : "weights";
  const summary = element("summary", { textContent: "As a table" });
  const details = element("details", { className: "table" }, summary, region);
  const build = () => region.replaceChildren(tableOf(block, weights));
  details.addEventListener("toggle", build, { once: true }); // 40,000 cells only if wanted
  return details;
}

function tableOf(block, weights) {
  const { rows, columns } = block;
  const heading = (scope) => (token) => element("th", { scope }, label(token));
  const body = weights.map((row, i) => {
    const cells = row.map((weight) => element("td", { textContent: weight.toFixed(3) }));
    return element("tr", {}, heading("row")(rows[i]), ...cells);
  });
  const head = element("tr", {}, element("td"), ...columns.map(heading("col")));
  const caption = element("caption", { textContent: `${attentionOf(block)}: rows attend to columns` });
  return element("table", {}, caption, element("thead", {}, head), element("tbody", {}, ...body));
}
