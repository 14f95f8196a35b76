/**
 * Other shapes of a loaded flame graph: folded to Python, without recursion, leaf first, callers and callees of one function.
 * Pure, and exact: every value stays, under fewer or other frames.
 */
import { placeOf } from "./flame_data.js";
import { flameOf, Tree } from "./flame_tree.js";

/** Longest sequence of frames whose repetition counts as recursion. */
const LONGEST_LOOP = 8;
/** Steps that a leaf-first merge may take; the smallest values go to `other` after that. */
const MOST_STEPS = 8_000_000;
const NO_PYTHON = "[no Python frames]";

/** The flame graph that a state asks for with `python` and `recursion`. */
export function foldFlame(flame, { python, recursion }) {
  if (!flame.count || !(python || recursion)) return flame;
  const { tree, keeps, none } = python ? pythonTree(flame) : { tree: new Tree(flame), keeps: () => true, none: -1 };
  const node = new Int32Array(flame.count);
  const own = ownValues(flame);
  for (let bar = 0; bar < flame.count; bar++) {
    if (bar > 0) node[bar] = step(node[flame.parent[bar]], flame.name[bar]);
    if (own[bar] > 0) tree.add(node[bar], own[bar]);
  }
  return flameOf(tree, flame).flame;

  function step(above, name) {
    if (!keeps(name)) return above === 0 ? tree.child(0, none) : above;
    const again = recursion && above > 0 ? loopEnd(tree, above, name) : -1;
    return again > 0 ? again : tree.child(above, name);
  }
}

/** Native and kernel frames belong to their Python caller; what has none is one bar under the root. */
function pythonTree(flame) {
  const { kinds } = flame;
  const found = flame.names.indexOf(NO_PYTHON);
  const none = found < 0 ? flame.names.length : found;
  const tree = found >= 0 ? new Tree(flame) : new Tree({
    names: [...flame.names, NO_PYTHON], kinds: [...kinds, "mark"], files: [...flame.files, ""],
  });
  return { tree, none, keeps: (name) => kinds[name] !== "native" && kinds[name] !== "kernel" };
}

/**
 * Where a name leads when it ends a second round of one sequence (A, or A B, up to eight frames): to the end of the first
 * round; -1 when it doesn't.  The set of functions in a stack stays, and so do all totals of the table.
 */
function loopEnd(tree, above, name) {
  let end = above;
  for (let length = 1; length <= LONGEST_LOOP && end > 0; length++) {
    if (tree.name[end] === name && sameRound(tree, above, end, length - 1)) return end;
    end = tree.parent[end];
  }
  return -1;
}

function sameRound(tree, second, end, frames) {
  let first = tree.parent[end];
  for (let i = 0, at = second; i < frames; i++) {
    if (first <= 0 || tree.name[at] !== tree.name[first]) return false;
    at = tree.parent[at];
    first = tree.parent[first];
  }
  return true;
}

/** Leaf first: under the root the functions that have values of their own, below each its callers. */
export function invertFlame(flame) {
  const own = ownValues(flame);
  const bars = [...own.keys()].filter((bar) => bar > 0 && own[bar] > 0).sort((a, b) => own[b] - own[a] || a - b);
  const tree = new Tree(flame);
  climb(tree, flame, bars.map((bar) => [bar, own[bar]]));
  if (own[0] > 0) tree.add(0, own[0]);
  return Object.assign(flameOf(tree, flame).flame, { leafFirst: true });
}

/** Adds the way from each bar up to the root, the bar itself first. */
function climb(tree, flame, starts) {
  let steps = 0;
  for (const [bar, value] of starts) {
    let node = 0;
    for (let at = bar; at > 0 && node >= 0; at = flame.parent[at]) {
      node = steps++ < MOST_STEPS ? tree.child(node, flame.name[at]) : -1;
    }
    tree.add(node, value);
  }
}

/** Indices of the names that a function stands for: the text, and the file (without a line) unless that is empty. */
export function namesOf(flame, { name, file }) {
  return Uint8Array.from(flame.names, (own, i) => Number(own === name && (!file || placeOf(flame.files[i]) === file)));
}

/**
 * Callers and callees of a function, merged over all stacks; a stack in which it occurs more than once counts once, from its
 * outermost occurrence.  null when the graph hasn't got it.
 */
export function sandwichOf(flame, target) {
  const wanted = namesOf(flame, target);
  const { outermost, inside } = occurrences(flame, wanted);
  if (!outermost.length) return null;
  const root = flame.name[outermost[0]];
  const callers = new Tree(flame, { root });
  const heaviest = [...outermost].sort((a, b) => flame.total[b] - flame.total[a] || a - b);
  climbCallers(callers, flame, heaviest);
  const callees = new Tree(flame, { root });
  descend(callees, flame, inside);
  const value = outermost.reduce((sum, bar) => sum + flame.total[bar], 0);
  return { callers: Object.assign(flameOf(callers, flame).flame, { leafFirst: true }), callees: flameOf(callees, flame).flame, value };
}

/**
 * Functions nearest to the root of a graph of callers or callees that are of a kind (any kind when it is empty), with the value
 * that passes through them, the largest first: [{name, value}].
 */
export function nearestOf(flame, kind = "") {
  const sums = new Map();
  const passed = new Uint8Array(flame.count);
  for (let bar = 1; bar < flame.count; bar++) {
    const name = flame.name[bar];
    passed[bar] = passed[flame.parent[bar]];
    if (passed[bar] || (kind && flame.kinds[name] !== kind)) continue;
    passed[bar] = 1;
    sums.set(name, (sums.get(name) ?? 0) + flame.total[bar]);
  }
  return [...sums].map(([name, value]) => ({ name, value })).sort((a, b) => b.value - a.value || a.name - b.name);
}

function climbCallers(tree, flame, bars) {
  climb(tree, flame, bars.map((bar) => [flame.parent[bar], flame.total[bar]]));
}

/** `inside[bar]` is 1 for an outermost occurrence and 2 for what is below one. */
function occurrences(flame, wanted) {
  const inside = new Uint8Array(flame.count);
  const outermost = [];
  for (let bar = 1; bar < flame.count; bar++) {
    if (inside[flame.parent[bar]]) inside[bar] = 2;
    else if (wanted[flame.name[bar]]) {
      inside[bar] = 1;
      outermost.push(bar);
    }
  }
  return { outermost, inside };
}

function descend(tree, flame, inside) {
  const node = new Int32Array(flame.count);
  const own = ownValues(flame);
  for (let bar = 1; bar < flame.count; bar++) {
    if (!inside[bar]) continue;
    if (inside[bar] === 2) node[bar] = tree.child(node[flame.parent[bar]], flame.name[bar]);
    if (own[bar] > 0) tree.add(node[bar], own[bar]);
  }
}

/** What of each bar isn't in its children: its self value, and what the answer left open. */
export function ownValues(flame) {
  const own = Float64Array.from(flame.total);
  for (let bar = 1; bar < flame.count; bar++) own[flame.parent[bar]] -= flame.total[bar];
  return own.map((value) => Math.max(0, value));
}
