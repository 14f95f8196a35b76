/**
 * Paints the visible rows of a laid-out flame graph on a canvas.  Knows nothing of pointers, keys or data sources.
 */
import { THIN } from "./flame_layout.js";

/** Height of a row in CSS pixels. */
export const ROW = 20;
const PADDING = 5;
const NARROWEST_TEXT = 22;
const LONGEST_TEXT = 400;
const MOST_MEASURED = 20_000;
const FONT_SIZE = 12;
/** What the colour says as well, left out where there is no room for both. */
const PREFIX = /^\[(?:cuda|kernel)\] /;

/** Sizes a canvas for the screen's pixels; true when it changed. */
export function fitCanvas(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [across, down] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width === across && canvas.height === down) return false;
  canvas.width = across;
  canvas.height = down;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  return true;
}

/** Where a row begins in a drawing of a height: from the top, or from the bottom when it is flipped. */
export function topOf(row, { flipped, full }) {
  return flipped ? full - (row + 1) * ROW : row * ROW;
}

/**
 * Draws a scene: {flame, layout, fill, palette, width, height, scroll, flipped, full, zoomRow, matches, hover, focus}.
 * `fill(bar)` is a colour, `full` the height of all rows; `matches` is null or a mask over names; `hover` and `focus` are
 * numbers of bars or -1; rows above `zoomRow` are ancestors.
 */
export function drawFlame(canvas, scene) {
  const ratio = canvas.width / scene.width;
  const paint = canvas.getContext("2d");
  paint.setTransform(ratio, 0, 0, ratio, 0, 0);
  paint.clearRect(0, 0, scene.width, scene.height);
  paint.font = `${FONT_SIZE}px ${scene.palette.font}`;
  paint.textBaseline = "middle";
  const [first, last] = visibleRows(scene);
  for (let row = first; row <= last; row++) drawRow(paint, scene, row);
}

function visibleRows({ scroll, height, flipped, full, layout }) {
  const begin = flipped ? full - scroll - height : scroll;
  return [Math.max(0, Math.floor(begin / ROW)), Math.min(layout.levels - 1, Math.floor((begin + height) / ROW))];
}

function drawRow(paint, scene, row) {
  const { rows } = scene.layout;
  const top = topOf(row, scene) - scene.scroll;
  paint.globalAlpha = row < scene.zoomRow ? 0.55 : 1;
  for (let box = rows[row]; box < rows[row + 1]; box++) drawBox(paint, scene, box, top);
  paint.globalAlpha = 1;
}

function drawBox(paint, scene, box, top) {
  const { layout, flame, palette } = scene;
  const bar = layout.bar[box];
  const [x, width] = [layout.x[box], layout.width[box]];
  if (layout.merged[box]) {
    paint.fillStyle = palette.strip;
    paint.fillRect(x, top, Math.max(width, THIN / 2), ROW - 1);
    return;
  }
  const name = flame.name[bar];
  const faint = scene.matches !== null && !scene.matches[name];
  const inner = width > 3 ? width - 1 : width * 0.8;
  paint.fillStyle = faint ? palette.faint : scene.fill(bar);
  fillBox(paint, x, top, inner);
  if (bar === scene.hover || bar === scene.focus) outline(paint, scene, bar, { x, top, inner });
  if (inner < NARROWEST_TEXT) return;
  paint.fillStyle = faint ? palette.faintText : palette.text;
  drawLabel(paint, flame.names[name], x, top, inner);
}

function fillBox(paint, x, top, width) {
  if (width < 6) {
    paint.fillRect(x, top, width, ROW - 1);
    return;
  }
  paint.beginPath();
  paint.roundRect(x, top, width, ROW - 1, 2);
  paint.fill();
}

function outline(paint, scene, bar, { x, top, inner }) {
  if (bar === scene.hover) {
    paint.fillStyle = scene.palette.hover;
    fillBox(paint, x, top, inner);
  }
  if (bar !== scene.focus) return;
  paint.strokeStyle = scene.palette.focus;
  paint.lineWidth = 2;
  paint.strokeRect(x + 1, top + 1, Math.max(inner - 2, 1), ROW - 3);
}

function drawLabel(paint, text, x, top, width) {
  const room = width - 2 * PADDING;
  const label = widthOf(paint, text.slice(0, LONGEST_TEXT)) <= room ? fit(paint, text, room) : fit(paint, text.replace(PREFIX, ""), room);
  if (label) paint.fillText(label, x + PADDING, top + (ROW - 1) / 2 + 0.5);
}

const measured = new Map();

/** As much of a text as fits, with `…` where it is cut. */
function fit(paint, text, room) {
  const whole = text.length > LONGEST_TEXT ? text.slice(0, LONGEST_TEXT) : text;
  const width = widthOf(paint, whole);
  if (width <= room && whole === text) return text;
  let letters = Math.min(whole.length, Math.floor((whole.length * room) / width));
  while (letters >= 2 && widthOf(paint, `${whole.slice(0, letters)}…`) > room) letters--;
  return letters < 2 ? "" : `${whole.slice(0, letters)}…`;
}

function widthOf(paint, text) {
  const known = measured.get(text);
  if (known !== undefined) return known;
  if (measured.size >= MOST_MEASURED) measured.clear();
  const width = paint.measureText(text).width;
  measured.set(text, width);
  return width;
}
