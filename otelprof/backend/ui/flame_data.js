/**
 * The flame graph of an answer as flat arrays.  Pure.
 *
 * The answer's `levels` are rows of [gap, total, self, name] in Pyroscope's form.  Here each bar is a number (row by row, left
 * to right), its facts stand in typed arrays under that number, and its children are one run of numbers: `childFrom[i]` to
 * `childUntil[i]`.  `path[i]` is a hash of the names from the root to the bar, by which a bar is found again in newer data.
 */

/** Name of the bar into which the backend folded what `max_nodes` left out. */
export const FOLDED = "other";
const MOST_BARS = 1 << 20;
const FIELDS = 4;

/** An answer as a flame graph; throws an Error when the answer contradicts itself. */
export function buildFlame(answer) {
  const { kinds = [], levels = [] } = answer;
  const flame = allocate(levels);
  const [names, files] = [(answer.names ?? []).map(printable), (answer.files ?? []).map(printable)];
  Object.assign(flame, { names, kinds, files, unit: answer.unit ?? "", whole: Number(answer.total) || 0, folded: Number(answer.other) || 0 });
  levels.forEach((values, level) => readLevel(flame, values, level));
  for (let level = 1; level < levels.length; level++) link(flame, level);
  hashPaths(flame);
  return flame;
}

/** Control characters, and those that turn the direction of writing and so disguise a name, become U+FFFD. */
function printable(text) {
  return String(text).replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
}

/** The bar whose path has this hash, or 0, the root. */
export function findPath(flame, hash) {
  const found = hash ? flame.path.indexOf(hash) : 0;
  return Math.max(found, 0);
}

/** Numbers of the bars from the root to a bar, both included. */
export function ancestors(flame, bar) {
  const found = [];
  for (let at = bar; at >= 0; at = flame.parent[at]) found.push(at);
  return found.reverse();
}

/** The row in which a bar stands, 0 for the root. */
export function levelOf(flame, bar) {
  let low = 0;
  let high = flame.levels - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (flame.rows[middle] <= bar) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** True for the bar into which the backend folded what `max_nodes` left out. */
export function isFolded(flame, bar) {
  return flame.names[flame.name[bar]] === FOLDED && !flame.kinds[flame.name[bar]];
}

function allocate(levels) {
  const rows = new Int32Array(levels.length + 1);
  levels.forEach((values, level) => { rows[level + 1] = rows[level] + Math.floor(values.length / FIELDS); });
  const count = rows[levels.length];
  if (count > MOST_BARS) throw new Error(`the flame graph has ${count} bars, more than the ${MOST_BARS} that a page can hold`);
  return {
    levels: levels.length, count, rows,
    start: new Float64Array(count), total: new Float64Array(count), self: new Float64Array(count),
    name: new Int32Array(count), parent: new Int32Array(count).fill(-1), path: new Uint32Array(count),
    childFrom: new Int32Array(count), childUntil: new Int32Array(count),
  };
}

function readLevel(flame, values, level) {
  let at = 0;
  for (let bar = flame.rows[level], i = 0; bar < flame.rows[level + 1]; bar++, i += FIELDS) {
    const name = values[i + 3];
    if (!(name >= 0 && name < flame.names.length)) throw new Error(`a bar of level ${level} has no name`);
    at += positive(values[i]);
    flame.start[bar] = at;
    flame.total[bar] = positive(values[i + 1]);
    flame.self[bar] = Math.min(positive(values[i + 2]), flame.total[bar]);
    flame.name[bar] = name;
    at += flame.total[bar];
  }
}

/** Negative and missing values draw nothing. */
const positive = (value) => (value > 0 ? Number(value) : 0);

/** Gives each bar of a level its parent and keeps it inside of that. */
function link(flame, level) {
  const { rows, start, total, parent, childFrom, childUntil } = flame;
  let above = rows[level - 1];
  childFrom.fill(rows[level], rows[level - 1], rows[level]);
  childUntil.fill(rows[level], rows[level - 1], rows[level]);
  for (let bar = rows[level]; bar < rows[level + 1]; bar++) {
    while (above + 1 < rows[level] && start[above] + total[above] <= start[bar]) above++;
    if (parent[bar - 1] !== above) childFrom[above] = bar;
    parent[bar] = above;
    childUntil[above] = bar + 1;
    clip(flame, bar, above);
  }
}

function clip(flame, bar, above) {
  const end = Math.min(flame.start[bar] + flame.total[bar], flame.start[above] + flame.total[above]);
  flame.start[bar] = Math.max(flame.start[bar], flame.start[above]);
  flame.total[bar] = Math.max(0, end - flame.start[bar]);
}

function hashPaths(flame) {
  const own = flame.names.map((name, i) => hashText(`${flame.kinds[i] ?? ""} ${name} ${placeOf(flame.files[i])}`));
  for (let bar = 0; bar < flame.count; bar++) {
    const above = flame.parent[bar] < 0 ? 0x811c9dc5 : flame.path[flame.parent[bar]];
    flame.path[bar] = Math.imul(((above << 5) | (above >>> 27)) ^ own[flame.name[bar]], 0x9e3779b1) >>> 0 || 1;
  }
}

/** A file without its line, which may differ between two answers. */
export const placeOf = (file) => (file ?? "").replace(/:\d+$/, "");

/** FNV-1a, 32 bits, over UTF-16 units. */
export function hashText(text) {
  let hash = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193);
  return hash >>> 0;
}
