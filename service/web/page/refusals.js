/** Why a source was refused, in a sentence for people, and texts to decode in its place. */
import { post } from "./api.js";
import { wordsOf } from "./texts.js";

const MOST_WORDS = 6; // buttons that are offered
const MOST_NAMED = 5;
const LETTER = /[\p{L}\p{N}]/u;
// Letters whose accents Unicode does not take apart.
const PLAIN = { ß: "ss", æ: "ae", œ: "oe", ø: "o", đ: "d", ł: "l", ı: "i", ð: "d", þ: "th" };
const SPECIAL_LETTERS = new RegExp(`[${Object.keys(PLAIN).join("")}]`, "giu");
const list = new Intl.ListFormat("en");

/**
 * Throws the error of a refused request again, in words for people if its source is too long for
 * the model's `limits`, or has what the vocabulary lacks. Then it also has `texts`: what the model
 * can read of the source.
 */
export async function explain(error, request, { max_source_length }, signal) {
  const { model, source, source_language, target_language, split } = request;
  const faults = error.problem?.errors ?? [];
  if (faults[0]?.pointer !== "/source") throw error;
  if (error.problem.code === "too_large" && !split) throw new Error(tooLong(max_source_length));
  const unknown = [...new Set(faults.flatMap((fault) => fault.unknown ?? []))];
  if (unknown.length === 0) throw error;
  const plain = withoutAccents(source);
  const cleared = without(unknown, plain);
  const wholes = [plain, cleared].filter((text) => text !== source && text !== "");
  const words = wordsOf(cleared).slice(0, MOST_WORDS);
  const asked = { model, source_language, target_language, text: [...wholes, ...words] };
  const read = await readable(asked, signal);
  const whole = wholes.find((text) => read.includes(text));
  const parts = words.filter((text) => read.includes(text));
  const message = whole || parts.length === 0 ? cannotRead(model, unknown) : oneWord(model, unknown);
  throw Object.assign(new Error(message), { texts: whole ? [whole] : parts });
}

function tooLong(limit) {
  return `Source has more than ${limit} tokens: shorten it, or choose “Split into sentences”`;
}

function withoutAccents(text) {
  const apart = text.normalize("NFD").replace(/\p{M}/gu, "").normalize("NFC");
  return apart.replace(SPECIAL_LETTERS, (letter) => {
    const plain = PLAIN[letter] ?? PLAIN[letter.toLowerCase()];
    return letter in PLAIN ? plain : plain[0].toUpperCase() + plain.slice(1);
  });
}

/** Leaves out unknown signs and whole words; letters within a word stay. */
function without(unknown, text) {
  const signs = unknown.filter((part) => !LETTER.test(part));
  const spaced = signs.reduce((left, sign) => left.replaceAll(sign, " "), text);
  return spaced.split(/\s+/).filter((word) => word && !unknown.includes(word)).join(" ");
}

/** Returns the texts that the tokenizer does not refuse. */
async function readable(asked, signal) {
  if (asked.text.length === 0) return [];
  const refused = await post("v1/tokenize", asked, undefined, signal).then(() => [], faultsOf);
  if (refused.some((pointer) => !pointer.startsWith("/text/"))) return [];
  return asked.text.filter((_, i) => !refused.includes(`/text/${i}`));
}

function faultsOf(error) {
  if (!error.problem?.errors) throw error;
  return error.problem.errors.map(({ pointer }) => pointer);
}

function cannotRead(model, unknown) {
  const named = unknown.filter((text) => text.trim()).map((text) => `“${text}”`);
  const others = named.splice(MOST_NAMED).length > 0 ? ["other signs"] : [];
  return `${model} cannot read ${list.format([...named, ...others]) || "spaces"}`;
}

function oneWord(model, unknown) {
  const foreign = unknown.filter((text) => LETTER.test(text) && withoutAccents(text) === text);
  const only = `${model} reads one word at a time`;
  return foreign.length > 0 ? `${only}, and ${cannotRead("it", foreign)}` : only;
}
