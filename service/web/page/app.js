/**
 * The page: a form whose fields are named as the service names them. They are its whole state, and
 * are kept in the address; everything else on the page is what the service answered last.
 */
import { ablationOf, dropMissing, isOff, nameSwitch, showWithout, toggle } from "./ablation.js";
import {
  addToHistory, beginAtAddress, goToAddress, keepInAddress, keepInAddressSoon, stateInAddress,
} from "./address.js";
import { showAnswer, showText } from "./answer.js";
import { curl, get, latest } from "./api.js";
import { placeOf, showAttention } from "./attention.js";
import { decodeAlong } from "./branch.js";
import { addressOfBoth, isBoth, nextAddress, showBoth } from "./beside.js";
import { copy, debounce } from "./browser.js";
import { checkNumbers, decodeRequest, noteOnBeams } from "./decoding.js";
import { decodeDocument, showSentences } from "./document.js";
import { download } from "./export.js";
import { offerLanguages } from "./languages.js";
import { asksFor, fillForm, unmet } from "./link.js";
import { offer, pickPlace, selectionOf } from "./pickers.js";
import { openPlayground } from "./playground.js";
import { hasProblem, note, tell } from "./problems.js";
import { clearReading, showContrast, showWords } from "./reading.js";
import { explain } from "./refusals.js";
import { leastCertain, showAlternatives, showHypotheses, whatIf } from "./result.js";
import { fitSource, offerTexts } from "./texts.js";

const $ = (id) => document.getElementById(id);
const form = $("controls");
const controls = form.elements;

let models = [];
// The last good answer: {root, asked, request, hypotheses, sourceTokens}. `root` and `asked` are the
// request as text, without the branch and with it.
let decoded = null;
let view = null; // draws the attention of `decoded`
let wanted = new URLSearchParams(); // what the address asks for, until there is a result
let wantedRoot = null; // the root of the answer that it asks for, if the form asks for the same
let walking = false; // from step to step: then later rows are dimmed

const pickedModel = () => models.find(({ name }) => name === controls.model.value);
const chosen = () => decoded.hypotheses[Number(controls.hypothesis.value)];
const specialIds = ({ pad_id, bos_id, eos_id }) => [pad_id, bos_id, eos_id];
const prefix = () => controls.target_prefix.value.split(",").filter(Boolean).map(Number);

async function start() {
  const isFree = document.activeElement === document.body && window === parent;
  if (isFree) $("source").focus({ preventScroll: true });
  restore();
  models = (await get("v1/models")).models;
  controls.model.replaceChildren(...models.map(({ name }) => new Option(name)));
  $("choice").hidden = models.length === 1;
  if (!isBoth()) restore({ starting: true });
}

/** Shows what the address asks for. At the start, what has been typed in the meantime stays. */
function restore({ starting = false } = {}) {
  wanted = stateInAddress();
  const both = showBoth(wanted);
  if (both) latest("decode"); // each of the two decodes its own
  if (both || models.length === 0) return; // start() goes on when there are models
  if (wanted.has("model")) controls.model.value = wanted.get("model");
  controls.model.value ||= models[0].name; // a link may name one that is gone
  const typed = controls.source.value !== controls.source.defaultValue;
  if (starting && !typed && !wanted.has("source")) askForExample();
  fillForm(controls, wanted, { starting });
  if (decoded && decoded.request.model !== controls.model.value) clear();
  $("reading").open ||= controls.foil.value !== "";
  offerModel(wanted);
  $("unmet").replaceChildren(...unmet(form, wanted), ...dropMissing(controls, pickedModel()));
  const met = asksFor(controls, wanted);
  wantedRoot = met ? rootOf(requestNow()) : null;
  if (met) beginAtAddress(form);
  else keepInAddressSoon(form);
  showDecoding();
}

/** Opens on the model's first example, in its languages, if it has one. */
function askForExample() {
  const [example = {}] = pickedModel().examples;
  for (const [name, value] of Object.entries(example)) wanted.set(name, value);
}

/** Returns what the form asks for, but for the branch. */
function requestNow() {
  const model = pickedModel();
  return { ...decodeRequest(controls, model.decoding), ...ablationOf(controls, model) };
}

const rootOf = (request) => JSON.stringify({ ...request, stream: undefined });

/** Forgets what belongs to another answer: the branch that was taken, and the link's step. */
function leaveLink() {
  controls.target_prefix.value = "";
  wanted = new URLSearchParams();
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
  offerTexts($("examples").lastElementChild, examples, controls, decodeOffered);
}

function decodeOffered() {
  addToHistory(form);
  return showDecoding();
}

/** Decodes what the form asks for, unless that is shown already. Shows it at the step of the form, or
 * at the least certain one. */
async function showDecoding({ keepStep = false } = {}) {
  const signal = latest("decode");
  const request = requestNow();
  const root = rootOf(request);
  if (![decoded?.root, wantedRoot].includes(root)) leaveLink();
  fitSource(form);
  $("beams").textContent = noteOnBeams(controls, pickedModel().decoding);
  if (!controls.source.value.trim()) return clear();
  form.ariaBusy = "true";
  await attempt("decoding", async () => {
    checkNumbers(controls);
    const { decoding, limits } = pickedModel();
    if (controls.split.checked) return showDocument({ ...request, split: "sentences" }, signal);
    const asked = JSON.stringify([request, prefix()]);
    if (decoded?.asked !== asked) {
      const answer = await decodeAlong(request, prefix(), decoding, signal, showText)
        .catch((error) => explain(error, request, limits, signal));
      controls.target_prefix.value = answer.request.target_prefix ?? "";
      decoded = { root, asked, ...answer };
    }
    const last = decoded.hypotheses.length - 1;
    const index = Math.max(0, Math.min(Math.trunc(wanted.get("hypothesis")) || 0, last));
    const step = wanted.get("step") ?? (keepStep ? Number(controls.step.value) : undefined);
    wanted = new URLSearchParams();
    say("decoding", "");
    await showHypothesis(index, step);
    signal.throwIfAborted(); // the source may be gone
    await attempt("heads", () => showWithout(decoded, prefix().length, signal));
  });
}

/** Decodes the sentences of a document; a click on one decodes it alone. */
async function showDocument(request, signal) {
  const { text, pairs } = await decodeDocument(request, signal)
    .catch((error) => explain(error, request, pickedModel().limits, signal));
  wanted = new URLSearchParams();
  clear(); // each sentence has its own
  showText(text);
  $("sentences").hidden = false;
  showSentences($("sentences"), pairs, (source) => {
    controls.source.value = source;
    controls.split.checked = false;
    controls.source.focus(); // the button that was pressed goes
    return decodeOffered();
  });
  keepInAddressSoon(form);
}

async function showHypothesis(index, step) {
  const pick = (i, j) => (i === index ? goTo(j) : showHypothesis(i, j));
  const options = { chosen: index, given: prefix().length, point: pointAtToken, pick };
  showHypotheses($("hypotheses").lastElementChild, decoded.hypotheses, options);
  await choose(step);
}

/** Shows the chosen hypothesis at a step, or at its last if it has fewer. */
async function choose(step = leastCertain(chosen(), specialIds(pickedModel().config))) {
  const { tokens } = chosen();
  showAnswer(pickedModel(), decoded.request.source, chosen());
  $("answer").hidden = hasProblem("decoding");
  $("branch").hidden = prefix().length === 0;
  $("branch-name").replaceChildren(...whatIf(tokens.slice(0, prefix().length)));
  $("attention").hidden = false;
  controls.step.max = tokens.length - 1;
  controls.step.value = step; // a slider keeps to its range
  walking = false;
  view = null;
  showStep();
  keepInAddressSoon(form);
  readAnswer();
  await showWeights();
}

/** Shows the words of the chosen hypothesis, and compares it with another answer, if that is open. */
function readAnswer() {
  if (!$("reading").open || !decoded) return clearReading();
  showWords(decoded.request, Number(controls.hypothesis.value));
  showFoil();
}

const showFoil = () => decoded && showContrast(targetRequest(), controls.foil.value);

function showStep() {
  const step = Number(controls.step.value);
  const { tokens, token_ids, top_log_probs } = chosen();
  $("step-name").textContent = `Step ${step} (0 to ${tokens.length - 1})`;
  const special = specialIds(pickedModel().config); // nothing follows these
  const branchAt = (id) => branch(step, id);
  showAlternatives($("alternatives"), top_log_probs[step], token_ids[step], special, branchAt);
  stepView();
}

function stepView() {
  const step = Number(controls.step.value);
  view?.step(step, walking ? step : Infinity);
}

function goTo(step) {
  walking = true;
  controls.step.value = step; // a slider keeps to its range
  showStep();
  keepInAddressSoon(form);
  if (hasProblem("attention")) showWeights();
}

/** Decodes again with another token at a step; Back returns. */
async function branch(step, id) {
  controls.target_prefix.value = [...chosen().token_ids.slice(0, step), id];
  controls.step.value = step;
  addToHistory(form);
  await showDecoding({ keepStep: true });
  const lost = document.activeElement === document.body; // the button that was pressed is gone
  if (lost) $("leave-branch").focus({ preventScroll: true });
}

async function leaveBranch() {
  controls.target_prefix.value = "";
  addToHistory(form);
  controls.step.focus({ preventScroll: true }); // the button that was pressed goes
  await showDecoding();
}

/** Returns a request for attention to exactly the tokens that are shown. */
function targetRequest() {
  const { model, source, source_language, target_language, ablate } = decoded.request;
  return { model, source, source_language, target_language, ablate, target: [chosen().token_ids] };
}

function attentionRequest() {
  return { ...targetRequest(), attention: selectionOf(controls) };
}

async function showWeights() {
  if (pickedModel().attention.length === 0) return;
  nameSwitch(controls, pickedModel(), pickedPlace());
  const choices = { pick: drillInto, onStep: goTo, isOff: (place) => isOff(controls, place) };
  const { sourceTokens } = decoded;
  await attempt("attention", async () => {
    view = await showAttention(targetRequest(), sourceTokens, controls, pickedModel(), choices);
    stepView();
  });
}

const pickedPlace = () => placeOf(selectionOf(controls), controls, pickedModel());

/** Decodes again without the heads that are chosen, or with them; Back returns. */
async function switchHeads() {
  toggle(controls, pickedPlace());
  addToHistory(form);
  await showDecoding({ keepStep: true });
}

async function switchAllOn() {
  controls.ablate.value = "";
  addToHistory(form);
  $("switch").focus({ preventScroll: true }); // the button that was pressed goes
  await showDecoding({ keepStep: true });
}

/** Shows what is chosen in the grid; Back returns to the former choice. */
async function drillInto(place) {
  pickPlace(controls, place);
  addToHistory(form);
  await changeSelection();
}

async function changeSelection() {
  offer(controls, pickedModel());
  keepInAddressSoon(form);
  await showWeights();
}

function pointAtToken(index) {
  if (controls.kind.value !== "encoder") view?.point(index, -1);
}

async function switchModel() {
  controls.ablate.value = "";
  clear();
  offerModel();
  await showDecoding();
}

/** Runs `work`, and shows why it fails. The last result stays; it is dimmed, without its text, if
 * that of the form cannot be decoded. */
async function attempt(kind, work) {
  try {
    await work();
    if (kind !== "decoding") say(kind, ""); // a decoding shows what it has before it ends
  } catch (error) {
    if (error.name === "AbortError") return;
    say(kind, error.message);
    const texts = (error.texts ?? []).map((source) => ({ source }));
    if (kind === "decoding") offerTexts($("words"), texts, controls, decodeOffered);
  }
}

function say(kind, problem) {
  note(kind, problem);
  const stale = hasProblem("decoding") && decoded !== null;
  const last = stale && `Still shown is the last good result, of “${decoded.request.source}”.`;
  $("error").textContent = tell(last);
  form.classList.toggle("stale", stale);
  if (kind !== "decoding") return;
  $("result").hidden = decoded === null;
  $("answer").hidden = stale || decoded === null; // below the new source it looks like its answer
  $("words").replaceChildren();
  $("sentences").hidden = true;
  form.ariaBusy = "false";
}

function clear() {
  latest("attention");
  clearReading();
  decoded = null;
  $("attention").hidden = true;
  ["attention", "heads", "decoding"].forEach((kind) => say(kind, ""));
}

function copyLink() {
  keepInAddress(form); // at once: keepInAddressSoon may still be waiting
  return copy(location.href);
}

function onClick(id, act) {
  $(id).addEventListener("click", async ({ target }) => {
    try {
      await act(target);
      say("action", "");
    } catch (error) {
      say("action", error.message); // what is shown is still good
    }
  });
}

const reactions = {
  model: switchModel,
  hypothesis: () => choose(Number(controls.step.value)),
  step: ({ value }) => goTo(value),
  kind: changeSelection,
  layer: changeSelection,
  head: changeSelection,
  one_scale: changeSelection,
  foil: debounce(showFoil, 200), // a comparison takes two rows for each token of the source
};
form.addEventListener("input", ({ target }) => {
  if (models.length === 0) return; // start() reads the form
  $("unmet").replaceChildren();
  if (target.matches("select")) addToHistory(form); // Back returns to the former choice
  (reactions[target.name] ?? (() => showDecoding()))(target);
  keepInAddressSoon(form);
});
form.addEventListener("submit", (event) => event.preventDefault());
$("source").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) event.preventDefault();
});
onClick("previous", () => goTo(Number(controls.step.value) - 1));
onClick("next", () => goTo(Number(controls.step.value) + 1));
onClick("leave-branch", leaveBranch);
onClick("switch", switchHeads);
onClick("switch-on", switchAllOn);
onClick("copy-curl-decode", () => copy(curl("v1/decode", decoded.request)));
onClick("copy-curl", () => copy(curl("v1/attention", attentionRequest())));
onClick("copy-link", copyLink);
onClick("compare", async () => {
  await started; // the address has what was typed until then
  goToAddress(nextAddress);
  restore();
});
onClick("copy-both", () => copy(new URL(addressOfBoth(), location.href).href));
onClick("downloads", (target) => target.value && download(attentionRequest(), target));
addEventListener("popstate", () => restore());
$("reading").addEventListener("toggle", readAnswer);
$("playground").addEventListener("toggle", ({ target }) => target.open && openPlayground());
document.documentElement.classList.toggle("inside", window !== parent);
const started = start().catch(({ message }) =>
  say("decoding", `The page cannot start; reload it to try again. ${message}`));
