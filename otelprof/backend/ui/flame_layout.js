/**
 * Which bars of a flame graph stand where, for a view and a width.  Pure.
 *
 * A view is a span of values, {from, until}; all of the root is {from: 0, until: total}.  Bars thinner than a pixel are not
 * drawn one by one: neighbours become one strip, and their value is counted as `other`.
 */
import { isFolded } from "./flame_data.js";

/** Narrower bars are merged. */
export const THIN = 1;

/** The view that shows one bar at full width. */
export function viewOf(flame, bar) {
  return { from: flame.start[bar], until: flame.start[bar] + Math.max(flame.total[bar], Number.MIN_VALUE) };
}

/**
 * Boxes of all rows: `rows[r]` to `rows[r + 1]` are the boxes of row r, `x` and `width` in pixels, `bar` the bar's number.
 * `merged` is 0 for a bar and the number of bars for a strip (then `bar` is the first of them).  `value` is what a box stands
 * for.  `frames` is the number of bars shown, `other` the value of all that is merged into strips or was folded before.
 */
export function layOut(flame, view, width) {
  const out = { rows: [0], x: [], width: [], bar: [], merged: [], value: [], frames: 0, other: 0 };
  const shown = new Uint8Array(flame.count);
  let from = 0;
  let until = flame.count ? 1 : 0;
  while (from < until) {
    placeRow(out, { flame, view, scale: width / (view.until - view.from), pixels: width, shown }, from, until);
    if (out.x.length === out.rows.at(-1)) break;
    out.rows.push(out.x.length);
    [from, until] = nextRow(flame, shown, from, until);
  }
  out.levels = out.rows.length - 1;
  return out;
}

/** The run of bars under the bars of a row that are shown. */
function nextRow(flame, shown, from, until) {
  let first = from;
  let last = until - 1;
  while (first < until && !(shown[first] && hasChildren(flame, first))) first++;
  while (last > first && !(shown[last] && hasChildren(flame, last))) last--;
  return first < until ? [flame.childFrom[first], flame.childUntil[last]] : [0, 0];
}

const hasChildren = (flame, bar) => flame.childUntil[bar] > flame.childFrom[bar];

function placeRow(out, context, from, until) {
  const { flame, view, scale, pixels, shown } = context;
  let strip = null;
  for (let bar = from; bar < until; bar++) {
    if (flame.parent[bar] >= 0 && !shown[flame.parent[bar]]) continue;
    const left = (flame.start[bar] - view.from) * scale;
    const width = flame.total[bar] * scale;
    if (left + width <= 0 || left >= pixels || !(width > 0)) continue;
    if (width < THIN) {
      strip = extend(out, strip, { bar, left, width, value: flame.total[bar] });
      continue;
    }
    strip = flush(out, strip);
    shown[bar] = 1;
    place(out, flame, bar, left, width, pixels);
  }
  flush(out, strip);
}

function place(out, flame, bar, left, width, pixels) {
  const x = Math.max(left, 0);
  push(out, { x, width: Math.min(left + width, pixels) - x, bar, merged: 0, value: flame.total[bar] });
  out.frames++;
  if (isFolded(flame, bar)) out.other += flame.total[bar];
}

function extend(out, strip, next) {
  if (strip && next.left - (strip.x + strip.width) < THIN / 2) {
    strip.width = next.left + next.width - strip.x;
    strip.value += next.value;
    strip.merged++;
    return strip;
  }
  flush(out, strip);
  return { x: next.left, width: next.width, bar: next.bar, merged: 1, value: next.value };
}

function flush(out, strip) {
  if (!strip) return null;
  out.other += strip.value;
  push(out, strip);
  return null;
}

function push(out, box) {
  out.x.push(box.x);
  out.width.push(box.width);
  out.bar.push(box.bar);
  out.merged.push(box.merged);
  out.value.push(box.value);
}

/** Number of the box at a point of a row, or -1. */
export function boxAt(layout, row, x) {
  if (row < 0 || row >= layout.levels) return -1;
  let low = layout.rows[row];
  let high = layout.rows[row + 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (layout.x[middle] + Math.max(layout.width[middle], THIN) <= x) low = middle + 1;
    else high = middle;
  }
  return low < layout.rows[row + 1] && layout.x[low] <= x ? low : -1;
}

/** Number of the box that shows a bar, or -1. */
export function boxOf(layout, row, bar) {
  if (row >= layout.levels) return -1;
  for (let box = layout.rows[row]; box < layout.rows[row + 1]; box++) {
    if (layout.bar[box] === bar && !layout.merged[box]) return box;
  }
  return -1;
}
