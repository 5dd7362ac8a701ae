/** The Export menu closes after a choice, at Escape and at a click elsewhere. */

const menu = document.getElementById("export");
const summary = menu.querySelector("summary");

function close() {
  if (menu.contains(document.activeElement)) summary.focus();
  menu.open = false;
}

menu.addEventListener("click", ({ target }) => target.closest("button") && close());
menu.addEventListener("keydown", ({ key }) => key === "Escape" && close());
document.addEventListener("click", ({ target }) => !menu.contains(target) && (menu.open = false));
