/**
 * A flame graph as an SVG document.  Pure text; names are escaped, and what XML can't hold becomes U+FFFD.
 */
import { layOut, viewOf } from "./flame_layout.js";
import { formatShare, formatValue } from "./units.js";

const WIDTH = 1200;
const ROW = 18;
const TOP = 44;
const MARGIN = 10;
const LETTER = 6.2;
const MOST_ROWS = 8192;
const MARKUP = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
const NOT_XML = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** Text that is safe in XML content and in attributes. */
export function escapeXml(text) {
  return text.replace(NOT_XML, "\ufffd").replace(/[&<>"']/g, (letter) => MARKUP[letter]);
}

/**
 * The document for what is under `root`.  `colour(name index)` gives a fill, `title` and `subtitle` stand on top.
 */
export function svgOf(flame, { root = 0, title, subtitle, colour }) {
  const layout = layOut(flame, viewOf(flame, root), WIDTH - 2 * MARGIN);
  const rows = Math.min(layout.levels, MOST_ROWS);
  const height = TOP + rows * ROW + MARGIN;
  const bars = [];
  for (let row = 0; row < rows; row++) {
    for (let box = layout.rows[row]; box < layout.rows[row + 1]; box++) bars.push(barOf(flame, layout, row, box, colour));
  }
  return `${head(height, title, subtitle)}\n${bars.join("\n")}\n</svg>\n`;
}

function head(height, title, subtitle) {
  return `<?xml version="1.0" encoding="UTF-8"?>
<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${height}" viewBox="0 0 ${WIDTH} ${height}" font-family="Verdana, DejaVu Sans, sans-serif" font-size="11">
<title>${escapeXml(title)}</title>
<rect width="100%" height="100%" fill="#ffffff"/>
<text x="${MARGIN}" y="18" font-size="14">${escapeXml(title)}</text>
<text x="${MARGIN}" y="34" fill="#5b6470">${escapeXml(subtitle)}</text>`;
}

function barOf(flame, layout, row, box, colour) {
  const name = flame.name[layout.bar[box]];
  const merged = layout.merged[box];
  const x = MARGIN + layout.x[box];
  const y = TOP + row * ROW;
  const width = Math.max(layout.width[box] - 0.5, 0.4);
  const label = merged ? `${merged} thin bars` : flame.names[name];
  const value = `${formatValue(layout.value[box], flame.unit)}, ${formatShare(layout.value[box], flame.whole)}`;
  const place = merged || !flame.files[name] ? "" : `\n${flame.files[name]}`;
  const fill = merged ? "#c9ced6" : colour(name);
  const text = merged ? "" : labelOf(label, x, y, width);
  return `<g><title>${escapeXml(`${label}${place}\n${value}`)}</title>`
    + `<rect x="${x.toFixed(2)}" y="${y}" width="${width.toFixed(2)}" height="${ROW - 1}" fill="${escapeXml(fill)}"/>${text}</g>`;
}

function labelOf(label, x, y, width) {
  const letters = Math.floor((width - 6) / LETTER);
  if (letters < 3) return "";
  const shown = label.length > letters ? `${label.slice(0, letters - 1)}…` : label;
  return `<text x="${(x + 3).toFixed(2)}" y="${y + 12.5}">${escapeXml(shown)}</text>`;
}
