/**
 * A tree of names under construction, and the flame graph that it becomes.  Pure.
 *
 * Only values of their own are put in, `weights` of them per node (one for a graph, two for a difference); totals are their
 * sums, so that they stay true however stacks are folded.  A tree is bounded: what no longer fits goes to `other`.
 */
import { buildFlame, FOLDED } from "./flame_data.js";

const MOST_NODES = 1 << 18;

export class Tree {
  #below = new Map();
  #size;
  #other;

  /** `names`, `kinds` and `files` are parallel; `root` is the index of the name of node 0. */
  constructor({ names, kinds, files }, { root = 0, weights = 1 } = {}) {
    Object.assign(this, { names, kinds, files, weights });
    this.#size = names.length + 1;
    this.#other = names.findIndex((name, i) => name === FOLDED && !kinds[i]);
    this.name = [root];
    this.parent = [-1];
    this.own = Array.from({ length: weights }, () => [0]);
  }

  /** The child of a node with this name, made when it isn't there; -1 when the tree is full. */
  child(node, name) {
    if (node < 0) return -1;
    const key = node * this.#size + name;
    const known = this.#below.get(key);
    if (known !== undefined) return known;
    return this.name.length < MOST_NODES ? this.#grow(key, node, name) : -1;
  }

  /** Gives a value to a node, to `other` when there is none (-1). */
  add(node, value, weight = 0) {
    this.own[weight][node < 0 ? this.#spill() : node] += value;
  }

  #grow(key, node, name) {
    const made = this.name.length;
    this.#below.set(key, made);
    this.name.push(name);
    this.parent.push(node);
    for (const own of this.own) own.push(0);
    return made;
  }

  #spill() {
    if (this.#other < 0) {
      this.#other = this.names.length;
      this.names = [...this.names, FOLDED];
      this.kinds = [...this.kinds, ""];
      this.files = [...this.files, ""];
    }
    const key = this.#other;
    return this.#below.get(key) ?? this.#grow(key, 0, this.#other);
  }

  /** Sums over each node and what is below it, one list per weight. */
  totals() {
    return this.own.map((own) => {
      const sums = Float64Array.from(own);
      for (let node = sums.length - 1; node > 0; node--) sums[this.parent[node]] += sums[node];
      return sums;
    });
  }
}

/**
 * The flame graph of a tree: siblings stand in the order of their names, nodes without a width are left out.
 * `facts` are {unit, whole, folded}; `weigh(sums, node)` makes one width of the weights of a node, the first one by itself.
 * Answers {flame, nodes, totals}: `nodes[bar]` is the node of a bar, `totals[weight][node]` a sum.
 */
export function flameOf(tree, { unit, whole, folded }, weigh = (sums, node) => sums[0][node]) {
  const totals = tree.totals();
  const widths = Float64Array.from(tree.name, (_, node) => weigh(totals, node));
  const below = childrenOf(tree, widths);
  const levels = [];
  const nodes = [];
  for (let row = widths[0] > 0 ? [[0, 0]] : []; row.length; row = row.flatMap(([node, start]) => placed(below.get(node), start, widths))) {
    levels.push(levelOf(row, tree, widths, (node) => weigh(tree.own, node)));
    for (const [node] of row) nodes.push(node);
  }
  const { names, kinds, files } = tree;
  return { flame: buildFlame({ names, kinds, files, levels, unit, total: whole, other: folded }), nodes, totals };
}

/** Children of each node in the order of their names; `other`, where it was added here, is last. */
function childrenOf(tree, widths) {
  const below = new Map();
  for (let node = 1; node < tree.name.length; node++) {
    if (!(widths[node] > 0)) continue;
    const list = below.get(tree.parent[node]);
    if (list) list.push(node);
    else below.set(tree.parent[node], [node]);
  }
  for (const list of below.values()) list.sort((a, b) => tree.name[a] - tree.name[b]);
  return below;
}

/** Children side by side from a start: [[node, start], …]. */
function placed(children, start, widths) {
  let at = start;
  return (children ?? []).map((node) => {
    const begin = at;
    at += widths[node];
    return [node, begin];
  });
}

/** A row in the answer's form: gap, total, self, name. */
function levelOf(row, tree, widths, ownOf) {
  const values = [];
  let at = 0;
  for (const [node, start] of row) {
    values.push(start - at, widths[node], ownOf(node), tree.name[node]);
    at = start + widths[node];
  }
  return values;
}
