/** The API key of a service that wants one; the browser keeps it until its tab is closed. */

const SENDABLE = /^[!-~]+$/; // as the service has them; browsers refuse others in a header
const dialog = document.getElementById("ask-key");
const field = document.getElementById("key");
const said = document.getElementById("key-said");
let answer = null; // while the dialog is open: requests that are refused meanwhile wait for it

export function keyHeader() {
  const key = sessionStorage.getItem("key");
  return key ? { authorization: `Bearer ${key}` } : {};
}

/** Asks for another key than that of the header that was refused; returns whether there is one. */
export async function askForKey({ authorization }) {
  if (keyHeader().authorization !== authorization) return true; // given in the meantime
  const why = authorization ? "The service refused this key." : "";
  return (answer ??= ask(why).finally(() => (answer = null)));
}

async function ask(why) {
  field.value = "";
  dialog.returnValue = "";
  dialog.showModal();
  said.textContent = why;
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  const key = field.value.trim();
  field.value = "";
  if (dialog.returnValue !== "use") return dialog.returnValue !== "";
  if (!SENDABLE.test(key)) return ask("A key has only ASCII characters and no space.");
  sessionStorage.setItem("key", key);
  return true;
}

// Another page of the same tab was given the key: pages beside each other need it only once.
addEventListener("storage", ({ key }) => key === "key" && dialog.close("given"));
