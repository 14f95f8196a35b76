/**
 * A flame graph as a picture: all its rows, also those that are scrolled away, with a heading, at the sharpness of the screen.
 */
import { drawFlame, ROW } from "./flame_draw.js";
import { levelOf } from "./flame_data.js";

const MARGIN = 12;
const HEAD = 48;
/** Highest picture in pixels; browsers stop at 16,384 to 65,535. */
const TALLEST = 16_384;

/** A PNG of what a view shows; `words` are {title, subtitle}. */
export async function pngOf(view, palette, words) {
  const canvas = document.createElement("canvas");
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  const rows = Math.min(view.layout.levels, Math.floor((TALLEST / ratio - HEAD - MARGIN) / ROW));
  const [width, height] = [view.width, rows * ROW];
  canvas.width = Math.round((width + 2 * MARGIN) * ratio);
  canvas.height = Math.round((height + HEAD + MARGIN) * ratio);
  const paint = canvas.getContext("2d");
  paint.scale(ratio, ratio);
  drawHead(paint, palette, words, canvas);
  paint.drawImage(graphOf(view, palette, { width, height, ratio }), MARGIN, HEAD, width, height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

function drawHead(paint, palette, { title, subtitle }, canvas) {
  paint.fillStyle = palette.paper;
  paint.fillRect(0, 0, canvas.width, canvas.height);
  paint.fillStyle = palette.ink;
  paint.font = `600 14px ${palette.font}`;
  paint.fillText(title, MARGIN, 20);
  paint.font = `12px ${palette.font}`;
  paint.fillText(subtitle, MARGIN, 38);
}

function graphOf(view, palette, { width, height, ratio }) {
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  drawFlame(canvas, {
    flame: view.flame, layout: view.layout, fill: view.fill, palette, width, height, scroll: 0, flipped: view.flipped, full: height,
    zoomRow: levelOf(view.flame, view.zoom), matches: view.matches, hover: -1, focus: -1,
  });
  return canvas;
}
