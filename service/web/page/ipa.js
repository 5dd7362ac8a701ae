/** ARPAbet phonemes, as CMUdict writes them, in the International Phonetic Alphabet. */

const VOWELS = {
  AA: "ɑ", AE: "æ", AH: "ʌ", AO: "ɔ", AW: "aʊ", AY: "aɪ", EH: "ɛ", ER: "ɝ",
  EY: "eɪ", IH: "ɪ", IY: "i", OW: "oʊ", OY: "ɔɪ", UH: "ʊ", UW: "u",
};
const CONSONANTS = {
  B: "b", CH: "tʃ", D: "d", DH: "ð", F: "f", G: "ɡ", HH: "h", JH: "dʒ", K: "k", L: "l", M: "m", N: "n",
  NG: "ŋ", P: "p", R: "ɹ", S: "s", SH: "ʃ", T: "t", TH: "θ", V: "v", W: "w", Y: "j", Z: "z", ZH: "ʒ",
};
const UNSTRESSED = { AH: "ə", ER: "ɚ" };
const MARKS = { 1: "ˈ", 2: "ˌ" };
// The consonants that begin a syllable with the vowel that follows them.
const ONSET = /(^[^aeiouæɑɔəɚɛɝɪʊʌ]+|s?[ptk][lɹwj]?|[bdɡfθʃ][lɹwj]|s[lmnw]|tʃ|dʒ|[^aeiouæɑɔəɚɛɝɪʊʌŋ])$/;

/** Returns null if a phoneme is not ARPAbet. */
export function toIpa(text) {
  let ipa = "";
  for (const phoneme of text.split(" ")) {
    const [, name, stress] = phoneme.match(/^([A-Z]+)([012]?)$/) ?? [];
    const letters = (stress === "0" && UNSTRESSED[name]) || VOWELS[name] || CONSONANTS[name];
    if (!letters) return null;
    const onset = (MARKS[stress] && ipa.match(ONSET)?.[0]) || "";
    ipa = ipa.slice(0, ipa.length - onset.length) + (MARKS[stress] ?? "") + onset + letters;
  }
  return `/${ipa}/`;
}
