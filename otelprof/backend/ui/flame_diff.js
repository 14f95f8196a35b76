/**
 * Two flame graphs and what changed between them.  Pure.
 *
 * Changes are changes of shares: a left and a right side of different length or load are held against each other by what part
 * of their own whole a function has.
 */
import { buildFlame, placeOf } from "./flame_data.js";
import { ownValues } from "./flame_shape.js";
import { flameOf, Tree } from "./flame_tree.js";
import { functionsOf } from "./functions.js";

const FIELDS = 7;

/** Left and right flame graph of an answer whose rows are [gap, total, self, gap, total, self, name] (left, then right). */
export function splitAnswer(answer) {
  return { left: sideOf(answer, 0, answer.left_total), right: sideOf(answer, 3, answer.right_total) };
}

function sideOf({ names, kinds, files, levels, unit, other }, first, total) {
  const rows = levels.map((values) => rowOf(values, first)).filter((row) => row.length);
  return buildFlame({ names, kinds, files, unit, total, other, levels: total > 0 ? rows : [] });
}

/** The bars of a row that one side has; gaps of those that it hasn't go to the next. */
function rowOf(values, first) {
  const row = [];
  let gap = 0;
  for (let i = 0; i + FIELDS <= values.length; i += FIELDS) {
    gap += Number(values[i + first]);
    if (!(values[i + first + 1] > 0)) continue;
    row.push(gap, values[i + first + 1], values[i + first + 2], values[i + 6]);
    gap = 0;
  }
  return row;
}

/**
 * One flame graph of two.  A bar is as wide as the mean of its shares; `left` and `right` are the sides' totals by bar, `wholes`
 * their wholes, `change` the growth of the share from left to right, 0.01 for one point.
 */
export function diffFlames(left, right) {
  const tree = new Tree(commonNames(left, right), { weights: 2 });
  [left, right].forEach((flame, weight) => plant(tree, flame, weight));
  const wholes = [left.whole, right.whole];
  const sides = wholes.filter((whole) => whole > 0).length || 1;
  const share = (sums, node, side) => (wholes[side] > 0 ? sums[side][node] / wholes[side] : 0);
  const weigh = (sums, node) => (share(sums, node, 0) + share(sums, node, 1)) / sides;
  const { flame, nodes, totals } = flameOf(tree, { unit: left.unit, whole: 1, folded: Math.max(left.folded, right.folded) }, weigh);
  return Object.assign(flame, {
    wholes,
    left: Float64Array.from(nodes, (node) => totals[0][node]),
    right: Float64Array.from(nodes, (node) => totals[1][node]),
    change: Float64Array.from(nodes, (node) => share(totals, node, 1) - share(totals, node, 0)),
  });
}

const keyOf = ({ names, kinds, files }, i) => `${kinds[i] ?? ""}\n${names[i]}\n${placeOf(files[i])}`;

function commonNames(...flames) {
  const found = new Map();
  for (const flame of flames) {
    flame.names.forEach((name, i) => {
      const key = keyOf(flame, i);
      if (!found.has(key)) found.set(key, { name, kind: flame.kinds[i] ?? "", file: flame.files[i] ?? "" });
    });
  }
  const all = [...found.values()];
  return { names: all.map(({ name }) => name), kinds: all.map(({ kind }) => kind), files: all.map(({ file }) => file) };
}

/** Adds one side's values; its names are found in the tree's by kind, text and file. */
function plant(tree, flame, weight) {
  const index = new Map(tree.names.map((_, i) => [keyOf(tree, i), i]));
  const name = flame.names.map((_, i) => index.get(keyOf(flame, i)));
  const node = new Int32Array(flame.count);
  const own = ownValues(flame);
  for (let bar = 0; bar < flame.count; bar++) {
    if (bar > 0) node[bar] = tree.child(node[flame.parent[bar]], name[flame.name[bar]]);
    if (own[bar] > 0) tree.add(node[bar], own[bar], weight);
  }
}

/**
 * Functions of both sides: [{name, kind, file, left: {self, total}, right: {self, total}}], values as shares of their wholes.
 */
export function changedFunctions(left, right) {
  const found = new Map();
  for (const [side, flame] of [["left", left], ["right", right]]) {
    for (const { name, self, total } of functionsOf(flame)) {
      const entry = entryOf(found, flame, name);
      entry[side] = { self: self / flame.whole, total: total / flame.whole };
    }
  }
  return [...found.values()];
}

function entryOf(found, flame, name) {
  const key = keyOf(flame, name);
  if (!found.has(key)) {
    const nothing = { self: 0, total: 0 };
    found.set(key, { name: flame.names[name], kind: flame.kinds[name] ?? "", file: flame.files[name] ?? "", left: nothing, right: nothing });
  }
  return found.get(key);
}

/** `added`, `removed` or an empty text for a function of both sides. */
export function fateOf({ left, right }) {
  if (!(left.total > 0)) return right.total > 0 ? "added" : "";
  return right.total > 0 ? "" : "removed";
}

/** Functions by how much their share of `self` or `total` changed, those that changed most first. */
export function sortChanges(functions, order) {
  const change = ({ left, right }) => Math.abs(right[order] - left[order]);
  return [...functions].sort((a, b) => change(b) - change(a) || b.right[order] - a.right[order] || (a.name < b.name ? -1 : 1));
}
