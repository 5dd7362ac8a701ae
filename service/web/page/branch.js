/**
 * Decoding along a branch: a target prefix that leaves the model's own answer at one token or more.
 * The service answers only with what follows a prefix, so that the page joins both.
 */
import { decode } from "./decoding.js";

const LISTS = ["tokens", "token_ids", "log_probs", "top_log_probs"]; // one item a token

/**
 * Decodes with the prefix, a list of ids. Returns {request, hypotheses, sourceTokens}: the last
 * request, and whole hypotheses. If the prefix does not follow the alternatives that were shown, it
 * decodes without it: then the request has no target_prefix.
 */
export async function decodeAlong(request, prefix, decoding, signal, showText) {
  let path = Object.fromEntries(LISTS.map((name) => [name, []]));
  for (;;) {
    const done = path.token_ids.length === prefix.length;
    const asked = path.token_ids.length > 0 ? { ...request, target_prefix: path.token_ids } : request;
    const answer = await decode(asked, signal, done ? showText : () => {});
    const hypotheses = answer.hypotheses.map((each) => join(path, each, decoding));
    if (done) return { request: asked, hypotheses, sourceTokens: answer.source_tokens };
    path = follow(hypotheses, prefix);
    if (!path) return decodeAlong(request, [], decoding, signal, showText);
  }
}

/** Returns the lists of the prefix up to its next branch, or null if no alternative leads there. */
function follow(hypotheses, prefix) {
  const shared = ({ token_ids }) => {
    const end = prefix.findIndex((id, i) => token_ids[i] !== id);
    return end < 0 ? prefix.length : end;
  };
  const parent = hypotheses.reduce((best, each) => (shared(each) > shared(best) ? each : best));
  const kept = shared(parent);
  const path = Object.fromEntries(LISTS.map((name) => [name, parent[name].slice(0, kept)]));
  if (kept === prefix.length) return path;
  const alternatives = parent.top_log_probs[kept];
  const taken = alternatives?.find(({ id }) => id === prefix[kept]);
  if (!taken) return null;
  const items = [taken.token, taken.id, taken.log_prob, alternatives];
  LISTS.forEach((name, i) => path[name].push(items[i]));
  return path;
}

/** Returns a hypothesis with the tokens of its prefix, and the score of both. */
function join(path, hypothesis, decoding) {
  if (path.token_ids.length === 0) return hypothesis;
  const lists = LISTS.map((name) => [name, [...path[name], ...hypothesis[name]]]);
  const score = scoreOf(path, hypothesis, decoding.length_penalty);
  return { ...hypothesis, ...Object.fromEntries(lists), score };
}

/** Returns sum / length ** penalty, where the service also counts start tokens as the length. */
function scoreOf(path, { log_probs, score }, penalty) {
  const sum = (numbers) => numbers.reduce((total, each) => total + each, 0);
  const counted = (sum(log_probs) / score) ** (1 / penalty) || log_probs.length;
  const length = penalty === 0 ? 1 : counted + path.log_probs.length;
  return (sum(path.log_probs) + sum(log_probs)) / length ** penalty;
}
