/** How bright each weight is: its share of the highest weight on its scale, from 0 to 1. */

const EVEN = 4; // a row of equal weights has this part of the brightness

/** Returns the highest weight, or 1 if all are 0, so that it can divide. */
export function highestOf(weights) {
  return weights.flat().reduce((most, weight) => Math.max(most, weight), 0) || 1;
}

/**
 * Returns the shares of all weights on one scale up to `highest`. Without that each row has its own,
 * up to its highest weight of a token that is not special: special tokens often take most of a row
 * and would hide the others. A row that spreads its weight evenly over many tokens stays faint.
 */
export function sharesOf(columns, weights, highest = undefined) {
  return weights.map((row) => {
    const most = highest ?? scaleOf(row, columns);
    return row.map((weight) => Math.min(1, weight / most));
  });
}

function scaleOf(row, columns) {
  const total = row.reduce((sum, weight) => sum + weight, 0);
  const least = Math.min(1, EVEN / row.length) * total;
  return row.filter((_, i) => isOrdinary(columns[i])).reduce((a, b) => Math.max(a, b), least) || 1;
}

/**
 * Returns where each row has its highest weight in several matrices, as [matrix, column]: at a token
 * that is not special, if it attends to any.
 */
export function strongest(columns, matrices, { oneScale }) {
  const all = [...columns.keys()];
  const ordinary = oneScale ? [] : all.filter((column) => isOrdinary(columns[column]));
  return matrices[0].map((_, row) => {
    const among = ordinary.some((column) => matrices.some((each) => each[row][column] > 0)) ? ordinary : all;
    const weightAt = ([matrix, column]) => matrices[matrix][row][column];
    const places = matrices.flatMap((_, i) => among.map((column) => [i, column]));
    return places.reduce((best, place) => (weightAt(place) > weightAt(best) ? place : best));
  });
}

function isOrdinary({ start }) {
  return start !== null;
}

/**
 * Returns at most `most` rows and columns, for a picture of few pixels: the highest of each block,
 * so that no bright cell is lost.
 */
export function pooled(shares, most) {
  const rows = blocks(shares.length, most);
  const columns = blocks(shares[0].length, most);
  return rows.map(([top, bottom]) => columns.map(([left, right]) => {
    const block = shares.slice(top, bottom).flatMap((row) => row.slice(left, right));
    return Math.max(...block);
  }));
}

function blocks(length, most) {
  const count = Math.min(length, most);
  const edge = (i) => Math.floor((i * length) / count);
  return Array.from({ length: count }, (_, i) => [edge(i), edge(i + 1)]);
}
