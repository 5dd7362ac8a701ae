/** Requests to the service, its answers, and a request as a curl command. */
import { askForKey, keyHeader } from "./key.js";

export const JSON_TYPE = "application/json";

const running = {};

/** Returns a signal that aborts when `latest` is called again with this name. */
export function latest(name) {
  running[name]?.abort();
  running[name] = new AbortController();
  return running[name].signal;
}

/** Sends JSON. Throws an Error whose message is a sentence for the reader, or an AbortError. */
export async function post(path, body, accept = JSON_TYPE, signal = undefined) {
  const headers = { "content-type": JSON_TYPE, accept };
  return request(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

export async function get(path) {
  return (await request(path)).json();
}

async function request(path, options = {}) {
  const headers = { ...options.headers, ...keyHeader() };
  const response = await fetch(path, { ...options, headers }).catch((error) => {
    throw error.name === "AbortError" ? error : new Error("The service does not respond.");
  });
  if (response.ok) return response;
  if (response.status === 401) {
    if (await askForKey(headers)) return request(path, options);
    throw new Error("This service wants an API key. Reload the page to enter one.");
  }
  const problem = await response.json().catch(() => null); // a proxy's page is not a problem
  const said = problem?.errors?.map(sentence).join("; ") || problem?.detail;
  const status = `The service responded with status ${response.status}.`;
  throw Object.assign(new Error(said ?? status), { problem });
}

/** Makes a sentence of a fault: "/beam_size" and "is ..." become "Beam size is ...". */
function sentence({ pointer, detail }) {
  const name = pointer.slice(1).replaceAll("_", " ") || "the body";
  return `${name[0].toUpperCase()}${name.slice(1)} ${detail}`;
}

/** Yields {name, data} for each server-sent event of a POST, which EventSource cannot do. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    yield* parts.filter((part) => part.startsWith("event:")).map(read); // others are pings
  }
}

function read(part) {
  const fields = part.split("\n").map((line) => line.split(/: ?(.*)/s, 2));
  const data = fields.filter(([field]) => field === "data").map(([, text]) => text);
  return { name: fields[0][1], data: JSON.parse(data.join("\n")) };
}

/** Returns a command for a shell; its address is absolute, whatever prefix the page is under. */
export function curl(path, body) {
  const url = new URL(path, location.href).href;
  const header = `content-type: ${JSON_TYPE}`;
  const key = keyHeader().authorization ? ' -H "Authorization: Bearer $HEED_API_KEY"' : "";
  return `curl -sN ${quote(url)} -H ${quote(header)}${key} -d ${quote(JSON.stringify(body))}`;
}

function quote(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
