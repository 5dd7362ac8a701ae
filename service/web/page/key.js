/** The API key of a service that wants one; the browser keeps it until its tab is closed. */

const dialog = document.getElementById("ask-key");
const field = document.getElementById("key");
let answer = null; // while the dialog is open: requests that are refused meanwhile wait for it

export function keyHeader() {
  const key = sessionStorage.getItem("key");
  return key ? { authorization: `Bearer ${key}` } : {};
}

/** Asks for another key, and returns whether one was given. */
export function askForKey() {
  return (answer ??= open().finally(() => (answer = null)));
}

function open() {
  field.value = "";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(keep(dialog.returnValue)), { once: true });
  });
}

function keep(how) {
  if (how === "use") sessionStorage.setItem("key", field.value.trim());
  field.value = "";
  return how === "use";
}
