/** The browser's clipboard, downloads and timers. */

const status = document.getElementById("status");
const forget = debounce(() => (status.textContent = ""), 2000);

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    status.textContent = "Copied.";
    forget();
  } catch {
    prompt("Copy:", text); // browsers give pages their clipboard on https and localhost only
  }
}

export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // the browser may still be reading
}

/** Returns a function that calls `work` when its own last call is `milliseconds` ago. */
export function debounce(work, milliseconds) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(work, milliseconds, ...values);
  };
}
