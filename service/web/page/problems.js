/** Why work failed: of each kind the last reason, which stays until work of that kind succeeds. */
const problems = { decoding: "", attention: "", heads: "", action: "" };

export const hasProblem = (kind) => problems[kind] !== "";

/** Notes why work of a kind failed; "" if it succeeded, which ends the problem of an action too. */
export function note(kind, problem) {
  if (problem === "") problems.action = "";
  problems[kind] = problem.replace(/[^.]$/, "$&.");
}

/** Returns the problems as one text, with what is `still` shown after that of the decoding. */
export function tell(still) {
  const { decoding, ...others } = problems;
  return [decoding, still, ...Object.values(others)].filter(Boolean).join(" ");
}
