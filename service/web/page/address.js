/** The address holds the state of the form: links, Back and Forward show it again. */
import { debounce } from "./browser.js";

let state = ""; // of the form when it last changed; the browser gets it after a pause

const write = () => history.replaceState(null, "", state);
const writeSoon = debounce(write, 200); // browsers refuse to change the address at every key press
addEventListener("blur", () => state && write()); // whoever reads the address next finds all of it
const addressOf = (form) => `#${new URLSearchParams(new FormData(form))}`;

export function stateInAddress() {
  return new URLSearchParams(location.hash.slice(1));
}

/** Takes up the state that a link, Back or Forward names; the form's own if it names none. */
export function beginAtAddress(form) {
  state = location.hash || addressOf(form);
}

export function keepInAddress(form) {
  state = addressOf(form);
  write();
}

export function keepInAddressSoon(form) {
  state = addressOf(form);
  writeSoon();
}

/** Changes the address so that Back returns to the state before. */
export function addToHistory(form) {
  write();
  state = addressOf(form);
  history.pushState(null, "", state);
}

/** Goes to another address of the page, which `next` makes of this one; Back returns. */
export function goToAddress(next) {
  write();
  state = next();
  history.pushState(null, "", state);
}
