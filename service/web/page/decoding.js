/** Asks the service to decode a source, all at once or as a stream of tokens. */
import { JSON_TYPE, events, post } from "./api.js";
import { languagesOf } from "./languages.js";

/** Returns a request that is silent where the form is: there `decoding`, the model's own, applies. */
export function decodeRequest(controls, decoding) {
  const { model, source, beam_size, num_hypotheses, stream } = controls;
  const beams = beam_size.value ? { beam_size: Number(beam_size.value) } : {};
  return {
    model: model.value,
    source: source.value.trim(),
    ...languagesOf(controls),
    ...beams,
    num_hypotheses: Math.min(Number(num_hypotheses.value), beamsOf(controls, decoding)),
    top_log_probs: 5,
    ...(stream.checked && { stream: true }),
  };
}

function beamsOf({ beam_size }, decoding) {
  return Number(beam_size.value || decoding.beam_size);
}

/** Returns a note if there are too few beams for the wanted hypotheses, else nothing. */
export function noteOnBeams(controls, decoding) {
  const { beam_size, num_hypotheses } = controls;
  const beams = beamsOf(controls, decoding);
  if (!beam_size.validity.valid || beams >= Number(num_hypotheses.value)) return "";
  return beams === 1 ? "1 beam finds 1" : `${beams} beams find ${beams}`;
}

/** Throws an Error if a field has no number that may be asked for. */
export function checkNumbers({ beam_size, num_hypotheses }) {
  const wrong = [beam_size, num_hypotheses].find((field) => !field.checkValidity());
  if (!wrong) return;
  const name = wrong.labels[0].firstChild.textContent.trim();
  throw new Error(`${name}: ${wrong.validationMessage}`);
}

/** Returns the result of the source; `showText(stable, tentative)` is called while they stream. */
export async function decode(request, signal, showText) {
  const response = await post("v1/decode", request, JSON_TYPE, signal);
  const answer = request.stream ? await follow(response, showText) : await response.json();
  return answer.results[0];
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
