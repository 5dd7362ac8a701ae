/**
 * The page: a form whose fields are named as the service names them. They are its whole state, and
 * are kept in the address; everything else on the page is what the service answered last.
 */
import { element } from "view/labels.js";
import { addToHistory, keepInAddress, keepInAddressSoon, stateInAddress } from "./address.js";
import { curl, get, latest } from "./api.js";
import { showAttention } from "./attention.js";
import { decodeAlong } from "./branch.js";
import { copy } from "./browser.js";
import { decodeRequest, noteOnBeams } from "./decoding.js";
import { download } from "./export.js";
import { offerLanguages } from "./languages.js";
import { offer, pickPlace, selectionOf } from "./pickers.js";
import { showAlternatives, showHypotheses, whatIf } from "./result.js";
import { offerTexts, showPronunciation, wordsOf } from "./texts.js";

const $ = (id) => document.getElementById(id);
const form = $("controls");
const controls = form.elements;
const LONG = 60; // letters that fill a line of the largest font
const MOST_WORDS = 6; // buttons that are offered

let models = [];
// The last good answer: {root, asked, request, hypotheses, sourceTokens}. `root` and `asked` are the
// request as text, without the branch and with it.
let decoded = null;
let view = null; // draws the attention of `decoded`
let wanted = new URLSearchParams(); // what the address asks for, until there is a result

const pickedModel = () => models.find(({ name }) => name === controls.model.value);
const chosen = () => decoded.hypotheses[Number(controls.hypothesis.value)];
const prefix = () => controls.target_prefix.value.split(",").filter(Boolean).map(Number);

async function start() {
  models = (await get("v1/models")).models;
  controls.model.replaceChildren(...models.map(({ name }) => new Option(name)));
  $("choice").hidden = models.length === 1;
  $("source").focus({ preventScroll: true });
  restore();
}

function restore() {
  wanted = stateInAddress();
  for (const name of ["model", "source", "beam_size", "num_hypotheses"]) {
    if (wanted.has(name)) controls[name].value = wanted.get(name);
  }
  controls.target_prefix.value = wanted.get("target_prefix") ?? "";
  controls.model.value ||= models[0].name; // a link may name one that is gone
  controls.stream.checked = wanted.has("stream");
  offerModel(wanted);
  showDecoding();
}

/** Adapts the form to the picked model; `wanted` is what an address asks for. */
function offerModel(wanted) {
  const { name, task, limits, licence, attribution, attention, decoding, languages, origin } = pickedModel();
  const { max_source_length: source, max_target_length: target } = limits;
  $("about").textContent = $("about").title = task || name; // a bundle may lack the task
  $("limits").textContent = `${name}: a source has up to ${source} tokens, its target up to ${target}.`;
  $("smoothing").hidden = Object.keys(origin).length > 0; // `model train` smooths labels
  const credit = [attribution, licence].filter(Boolean).join("; "); // nor need it have these
  $("credit").textContent = credit && `${name}: ${credit}.`;
  $("attention-view").hidden = attention.length === 0;
  $("no-attention").hidden = attention.length > 0;
  controls.beam_size.placeholder = decoding.beam_size;
  offerLanguages(controls, languages, wanted);
  offer(controls, pickedModel(), wanted);
  const { examples } = pickedModel();
  $("examples").hidden = examples.length === 0;
  offerTexts($("examples").lastElementChild, examples, controls, () => showDecoding());
}

/** Decodes what the form asks for, unless that is shown already, and shows it at a step. */
async function showDecoding(step = Infinity) {
  const signal = latest("decode");
  fitSource();
  $("beams").textContent = noteOnBeams(controls, pickedModel().decoding);
  if (!controls.source.value.trim()) return clear();
  form.ariaBusy = "true";
  await attempt(async () => {
    const { decoding } = pickedModel();
    const request = decodeRequest(controls, decoding);
    const root = JSON.stringify({ ...request, stream: undefined });
    // A branch belongs to the answer that it left.
    if (wanted.size === 0 && decoded?.root !== root) controls.target_prefix.value = "";
    const asked = JSON.stringify([request, prefix()]);
    if (decoded?.asked !== asked) {
      const answer = await decodeAlong(request, prefix(), decoding, signal, showText);
      controls.target_prefix.value = answer.request.target_prefix ?? "";
      decoded = { root, asked, ...answer };
    }
    const last = decoded.hypotheses.length - 1;
    await showHypothesis(Math.min(Number(wanted.get("hypothesis")) || 0, last), step);
  });
}

/** Shows a word in large letters, and gives a long text the room that it needs. */
function fitSource() {
  const long = controls.source.value.length > LONG;
  form.classList.toggle("long", long);
  controls.source.rows = long ? 5 : 1; // for browsers that do not fit it to its text
}

function showText(stable, tentative = "") {
  const rest = element("span", { className: "tentative", textContent: tentative });
  $("output").replaceChildren(stable, rest);
  $("pronunciation").hidden = true; // it belongs to a whole answer
  $("answer").hidden = $("result").hidden = false;
}

async function showHypothesis(index, step) {
  const pick = (i, j) => (i === index ? goTo(j) : attempt(() => showHypothesis(i, j)));
  const options = { chosen: index, given: prefix().length, point: pointAtToken, pick };
  showHypotheses($("hypotheses").lastElementChild, decoded.hypotheses, options);
  say("");
  await choose(step);
}

/** Shows the chosen hypothesis at a step, or at its last if it has fewer. */
async function choose(step) {
  const { text, tokens } = chosen();
  showText(text);
  showPronunciation(pickedModel(), decoded.request.source, text);
  $("branch").hidden = prefix().length === 0;
  $("branch-name").replaceChildren(...whatIf(tokens.slice(0, prefix().length)));
  $("attention").hidden = false;
  controls.step.max = tokens.length - 1;
  controls.step.value = wanted.get("step") ?? Math.min(step, tokens.length - 1);
  wanted = new URLSearchParams();
  view = null;
  showStep();
  keepInAddressSoon(form);
  await showWeights();
}

function showStep() {
  const step = Number(controls.step.value);
  const { tokens, token_ids, top_log_probs } = chosen();
  const { pad_id, bos_id, eos_id } = pickedModel().config; // nothing follows these
  $("step-name").textContent = `Step ${step} (0 to ${tokens.length - 1})`;
  const special = [pad_id, bos_id, eos_id];
  const branchAt = (id) => branch(step, id);
  showAlternatives($("alternatives"), top_log_probs[step], token_ids[step], special, branchAt);
  view?.step(step);
}

function goTo(step) {
  controls.step.value = step; // a slider keeps to its range
  showStep();
  keepInAddressSoon(form);
}

/** Decodes again with another token at a step; Back returns. */
async function branch(step, id) {
  keepInAddress(form);
  controls.target_prefix.value = [...chosen().token_ids.slice(0, step), id];
  addToHistory(form);
  await showDecoding(step);
  const lost = document.activeElement === document.body; // the button that was pressed is gone
  if (lost) $("leave-branch").focus({ preventScroll: true });
}

async function leaveBranch() {
  keepInAddress(form);
  controls.target_prefix.value = "";
  addToHistory(form);
  controls.step.focus({ preventScroll: true }); // the button that was pressed goes
  await showDecoding();
}

/** Returns a request for attention to exactly the tokens that are shown. */
function targetRequest() {
  const { model, source, source_language, target_language } = decoded.request;
  return { model, source, source_language, target_language, target: [chosen().token_ids] };
}

function attentionRequest() {
  return { ...targetRequest(), attention: selectionOf(controls) };
}

async function showWeights() {
  if (pickedModel().attention.length === 0) return;
  const choices = { pick: drillInto, onStep: goTo };
  const { sourceTokens } = decoded;
  view = await showAttention(targetRequest(), sourceTokens, controls, pickedModel(), choices);
  view.step(Number(controls.step.value));
}

/** Shows what is chosen in the grid; Back returns to the former choice. */
async function drillInto(place) {
  keepInAddress(form);
  pickPlace(controls, place);
  addToHistory(form);
  await changeSelection();
}

async function changeSelection() {
  offer(controls, pickedModel());
  keepInAddressSoon(form);
  await attempt(showWeights);
}

function pointAtToken(index) {
  if (controls.kind.value !== "encoder") view?.point(index, -1);
}

async function switchModel() {
  clear();
  offerModel();
  await showDecoding();
}

/** Runs `work`, and shows its errors as sentences. The last result stays, dimmed, without its text. */
async function attempt(work) {
  try {
    await work();
  } catch (error) {
    if (error.name === "AbortError") return;
    const words = refusedWords(error);
    say(words.length > 0 ? `${pickedModel().name} reads one word at a time` : error.message);
    offerTexts($("words"), words.map((source) => ({ source })), controls, () => showDecoding());
  }
}

/** Returns the words of a source that was refused for the spaces between them, else nothing. */
function refusedWords({ message, problem }) {
  if (problem?.errors?.[0]?.pointer !== "/source" || !message.includes("' '")) return [];
  return wordsOf(controls.source.value).slice(0, MOST_WORDS);
}

function say(problem) {
  const stale = problem !== "" && decoded !== null;
  const last = stale ? ` Below is the last good result, of “${decoded.request.source}”.` : "";
  $("error").textContent = problem.replace(/[^.]$/, "$&.") + last;
  $("words").replaceChildren();
  form.classList.toggle("stale", stale);
  form.ariaBusy = "false";
  $("result").hidden = decoded === null;
  $("answer").hidden = stale || decoded === null; // below the new source it looks like its answer
}

function clear() {
  latest("attention");
  decoded = null;
  $("attention").hidden = true;
  say("");
}

function copyLink() {
  keepInAddress(form); // at once: keepInAddressSoon may still be waiting
  return copy(location.href);
}

function onClick(id, act) {
  $(id).addEventListener("click", async ({ target }) => {
    try {
      await act(target);
    } catch (error) {
      $("error").textContent = error.message; // what is shown is still good
    }
  });
}

const reactions = {
  model: switchModel,
  hypothesis: () => attempt(() => choose(Number(controls.step.value))),
  step: showStep,
  kind: changeSelection,
  layer: changeSelection,
  head: changeSelection,
};
form.addEventListener("input", ({ target }) => {
  if (models.length === 0) return; // start() reads the form
  (reactions[target.name] ?? showDecoding)();
  keepInAddressSoon(form);
});
form.addEventListener("submit", (event) => event.preventDefault());
$("source").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) event.preventDefault();
});
onClick("previous", () => goTo(Number(controls.step.value) - 1));
onClick("next", () => goTo(Number(controls.step.value) + 1));
onClick("leave-branch", leaveBranch);
onClick("copy-curl-decode", () => copy(curl("v1/decode", decoded.request)));
onClick("copy-curl", () => copy(curl("v1/attention", attentionRequest())));
onClick("copy-link", copyLink);
onClick("downloads", (target) => target.value && download(attentionRequest(), target));
addEventListener("popstate", restore);
$("playground").addEventListener("toggle", () => import("./playground.js"), { once: true });
start().catch((error) => say(error.message));
