/** The Export menu, which closes after a choice, at Escape and at a click elsewhere. */
import { post } from "./api.js";
import { save } from "./browser.js";

const menu = document.getElementById("export");

/** Saves attention in the format of a button, under a name with the source's words. */
export async function download(request, { value, dataset }) {
  const response = await post("v1/attention", request, value);
  const text = request.source.replace(/[^\p{L}\p{M}\p{N}]+/gu, "-").slice(0, 40);
  save(await response.blob(), `attention-${text}.${dataset.name}`);
}

function close() {
  if (menu.contains(document.activeElement)) menu.firstElementChild.focus();
  menu.open = false;
}

menu.addEventListener("click", ({ target }) => target.closest("button") && close());
menu.addEventListener("keydown", ({ key }) => key === "Escape" && close());
document.addEventListener("click", ({ target }) => {
  if (!menu.contains(target)) menu.open = false;
});
