/** Attention without a model: the numbers of a form, and the weights and picture they give. */
import { element } from "view/labels.js";
import { JSON_TYPE, curl, get, latest, post } from "./api.js";
import { copy, debounce } from "./browser.js";

const $ = (id) => document.getElementById(id);
const form = $("attend");
const controls = form.elements;
const OWN = "own"; // the choice of example once a field is edited
const NUMBERS = ["queries", "keys", "values", "truth", "valid_lengths"];

let examples; // of the reference
let attended; // the last good request, or the first
let begun = null; // the promise that the form is filled

/** Loads the examples of the reference, so that their numbers are written once. */
async function loadExamples() {
  const { post: operation } = (await get("openapi.json")).paths["/v1/attend"];
  return Object.values(operation.requestBody.content[JSON_TYPE].examples);
}

function fill({ mechanism, width = 1, causal = false, ...numbers }) {
  controls.mechanism.value = mechanism;
  controls.width.value = width;
  controls.causal.checked = causal;
  for (const name of [...NUMBERS, "weights"]) {
    controls[name].value = name in numbers ? JSON.stringify(numbers[name]) : "";
  }
}

function adapt() {
  const mechanism = controls.mechanism.value;
  $("width-choice").hidden = mechanism !== "gaussian";
  $("weights-choice").hidden = mechanism !== "additive";
  $("width-value").textContent = controls.width.value;
  if (mechanism === "additive" && !controls.weights.value) {
    const { weights } = examples.find(({ value }) => value.weights).value;
    controls.weights.value = JSON.stringify(weights);
  }
}

function request() {
  const body = { mechanism: controls.mechanism.value };
  const names = body.mechanism === "additive" ? [...NUMBERS, "weights"] : NUMBERS;
  for (const name of names) {
    if (controls[name].value.trim()) body[name] = parse(name);
  }
  if (body.mechanism === "gaussian") body.width = controls.width.valueAsNumber;
  if (controls.causal.checked) body.causal = true;
  return body;
}

function parse(name) {
  try {
    return JSON.parse(controls[name].value);
  } catch {
    const example = "give lists of numbers, such as [1, 2] or [[1, 0], [0, 1]].";
    throw new Error(`${name} is not JSON: ${example}`);
  }
}

async function attend() {
  const body = request();
  const signal = latest("attend");
  const response = await post("v1/attend", body, JSON_TYPE, signal);
  const { outputs, weights, shape } = await response.json();
  $("numbers").textContent = `outputs\n${lines(outputs)}\n\nweights\n${lines(weights)}`;
  const picture = await post("v1/attend", body, "image/svg+xml", signal);
  const { documentElement: svg } = new DOMParser().parseFromString(await picture.text(), "image/svg+xml");
  svg.ariaLabel = `${body.mechanism} attention: heatmap of weights ${shape.join(" × ")}`
    + (body.truth ? ", and a plot of keys and values, the prediction and the truth" : "");
  $("picture").replaceChildren(svg); // inline, so that the style sheet has its colours
  attended = body;
}

function lines(array) {
  const rounded = (_, value) => (typeof value === "number" ? Number(value.toFixed(4)) : value);
  return array.map((each) => JSON.stringify(each, rounded)).join("\n");
}

async function attempt(work) {
  let problem = "";
  try {
    await work();
  } catch (error) {
    if (error.name === "AbortError") return;
    problem = error.message;
  }
  $("attend-error").textContent = problem;
  ["picture", "numbers"].forEach((id) => $(id).classList.toggle("stale", problem !== ""));
}

const update = debounce(() => attempt(attend), 60);
form.addEventListener("input", ({ target }) => {
  if (target.id === "example") fill(examples[target.value].value);
  else $("example").value = OWN;
  adapt();
  update();
});
$("copy-curl-attend").addEventListener("click", () => copy(curl("v1/attend", attended)));

/** Shows an example. If there is none, says why; the next call loads them again. */
export function openPlayground() {
  $("playground-error").textContent = "";
  begun ??= begin().catch((error) => {
    begun = null;
    const again = "The examples cannot be loaded; open this again to retry.";
    $("playground-error").textContent = `${again} ${error.message}`;
  });
}

async function begin() {
  examples = await loadExamples();
  $("example").replaceChildren(
    ...examples.map(({ summary }, i) => new Option(summary, i)),
    element("option", { value: OWN, textContent: "own numbers", disabled: true }),
  );
  const first = examples.findIndex(({ value }) => value.mechanism === "gaussian");
  $("example").value = first;
  fill(examples[first].value);
  attended = request();
  adapt();
  update();
  form.hidden = false; // until its numbers are there, nothing can be typed over
}
