/** Two answers side by side: the page shows itself twice, each with a state of its own. */
import { element } from "view/labels.js";

const $ = (id) => document.getElementById(id);
const frames = () => Array.from(document.querySelectorAll("iframe"));

export const isBoth = () => document.documentElement.classList.contains("both");

/** Shows two pages if the state of the address has another one `beside` it; returns whether. */
export function showBoth(wanted) {
  const both = wanted.has("beside");
  document.documentElement.classList.toggle("both", both);
  $("compare").textContent = both ? "End the comparison" : "Compare";
  $("copy-both").hidden = !both;
  frames().forEach((frame) => frame.remove());
  if (!both) return false;
  const beside = wanted.get("beside");
  wanted.delete("beside");
  document.querySelector("main").append(show("First answer", wanted), show("Second answer", beside));
  return true;
}

function show(title, state) {
  return element("iframe", { title, src: `./#${state}` });
}

/** Returns the address of what both pages show now; if only one is shown, of that one twice. */
export function addressOfBoth() {
  const shown = frames().map((frame) => frame.contentWindow.location.hash.slice(1));
  const [first, second = first] = shown.length > 0 ? shown : [location.hash.slice(1)];
  return `#${first}&beside=${encodeURIComponent(second)}`;
}

/** Returns the address that follows a press of the button: of both pages, or of the first alone. */
export function nextAddress() {
  const [first] = frames();
  return first ? first.contentWindow.location.hash : addressOfBoth();
}
