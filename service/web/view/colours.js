/** Shares of a scale as colours: viridis. */
import { element } from "view/labels.js";

const VIRIDIS = [ // as in service/formats/colours.py
  [68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141],
  [39, 173, 129], [92, 200, 99], [170, 220, 50], [253, 231, 37],
];

/** Draws one pixel a cell: the style sheet makes it larger. */
export function paint(shares) {
  const canvas = element("canvas", { width: shares[0].length, height: shares.length });
  const image = new ImageData(canvas.width, canvas.height);
  shares.flat().forEach((share, i) => image.data.set(viridis(share), 4 * i));
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function viridis(share) {
  const at = share * (VIRIDIS.length - 1);
  const [low, high] = [VIRIDIS[Math.floor(at)], VIRIDIS[Math.ceil(at)]];
  return [...low.map((channel, i) => channel + (high[i] - channel) * (at % 1)), 255];
}

/** Explains the colours, up to `highest` on one scale; without it each row has its own. */
export function legend({ measure = "weight" }, highest = undefined) {
  const scale = element("span", { className: "scale", ariaHidden: "true" });
  scale.style.background = `linear-gradient(90deg, ${VIRIDIS.map((one) => `rgb(${one})`)})`;
  const ends = highest ? [`${measure}: 0`, highest.toFixed(2)] : [`${measure} in its row: low`, "high"];
  return element("p", { className: "legend" }, ends[0], scale, ends[1]);
}
