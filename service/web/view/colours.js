/** Weights as colours: viridis, from 0 to the highest weight that is shown on one scale. */
import { element } from "view/labels.js";

const VIRIDIS = [ // as in service/formats/colours.py
  [68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141],
  [39, 173, 129], [92, 200, 99], [170, 220, 50], [253, 231, 37],
];

/** Draws one pixel a cell: the style sheet makes it larger. */
export function paint(weights, highest) {
  const canvas = element("canvas", { width: weights[0].length, height: weights.length });
  const image = new ImageData(canvas.width, canvas.height);
  weights.flat().forEach((weight, i) => image.data.set(viridis(weight / highest), 4 * i));
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function viridis(share) {
  const at = share * (VIRIDIS.length - 1);
  const [low, high] = [VIRIDIS[Math.floor(at)], VIRIDIS[Math.ceil(at)]];
  return [...low.map((channel, i) => channel + (high[i] - channel) * (at % 1)), 255];
}

/** Returns the highest weight, or 1 if all are 0, so that it can divide. */
export function highestOf(weights) {
  return weights.flat().reduce((most, weight) => Math.max(most, weight), 0) || 1;
}

export function legend(highest) {
  const scale = element("span", { className: "scale", ariaHidden: "true" });
  scale.style.background = `linear-gradient(90deg, ${VIRIDIS.map((one) => `rgb(${one})`)})`;
  return element("p", { className: "legend" }, "attention weight: 0", scale, highest.toFixed(2));
}
