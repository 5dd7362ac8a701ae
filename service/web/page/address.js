/** The address holds the state of the form: links, Back and Forward show it again. */
import { debounce } from "./browser.js";

const addressOf = (form) => `#${new URLSearchParams(new FormData(form))}`;

export function stateInAddress() {
  return new URLSearchParams(location.hash.slice(1));
}

export function keepInAddress(form) {
  history.replaceState(null, "", addressOf(form));
}

/** Waits for a pause: browsers refuse to change the address at every key press. */
export const keepInAddressSoon = debounce(keepInAddress, 200);

/** Changes the address so that Back returns to the one before. */
export function addToHistory(form) {
  history.pushState(null, "", addressOf(form));
}
