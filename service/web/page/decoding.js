/** Asks the service to decode a source, all at once or as a stream of tokens. */
import { JSON_TYPE, events, post } from "./api.js";

export function decodeRequest({ model, source, beam_size, num_hypotheses, stream }) {
  [beam_size, num_hypotheses].forEach(checkNumber);
  const request = {
    model: model.value,
    source: source.value,
    beam_size: Number(beam_size.value),
    num_hypotheses: Math.min(Number(num_hypotheses.value), Number(beam_size.value)),
    top_log_probs: 5,
  };
  return stream.checked ? { ...request, stream: true } : request;
}

function checkNumber(field) {
  if (field.checkValidity()) return;
  const name = field.labels[0].firstChild.textContent.trim();
  throw new Error(`${name}: ${field.validationMessage}`);
}

/** Returns the hypotheses; `showText(stable, tentative)` is called while they stream. */
export async function decode(request, signal, showText) {
  const response = await post("v1/decode", request, JSON_TYPE, signal);
  const answer = request.stream ? await follow(response, showText) : await response.json();
  return answer.results[0].hypotheses;
}

async function follow(response, showText) {
  let text = "";
  for await (const { name, data } of events(response)) {
    if (name === "done") return data;
    if (name === "error") throw new Error(data.detail);
    if (name === "token") showText((text += data.text));
    if (name === "beam") showText(data.stable, data.tentative.slice(data.stable.length));
  }
  throw new Error("The service stopped before the end of its answer.");
}
