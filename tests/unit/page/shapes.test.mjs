// Other shapes of a flame graph: folded, inverted, around one function, and the difference of two. Run by tests/unit/test_page_modules.py.
import assert from "node:assert/strict";
import { test } from "node:test";

import { buildFlame } from "../../../otelprof/backend/ui/flame_data.js";
import { changedFunctions, diffFlames, fateOf, sortChanges, splitAnswer } from "../../../otelprof/backend/ui/flame_diff.js";
import { foldFlame, invertFlame, nearestOf, ownValues, sandwichOf } from "../../../otelprof/backend/ui/flame_shape.js";
import { flameOf, Tree } from "../../../otelprof/backend/ui/flame_tree.js";
import { functionsOf } from "../../../otelprof/backend/ui/functions.js";

const KINDS = { p: "python", n: "native", k: "kernel", c: "cuda", m: "mark" };

/** A flame graph of stacks such as {"p:main n:dispatch": 5}; `_` is a space in a name. */
function graph(stacks) {
  const frames = [...new Set(Object.keys(stacks).flatMap((stack) => stack.split(" ")))].sort();
  const tree = new Tree({
    names: ["total", ...frames.map((frame) => frame.slice(2).replaceAll("_", " "))], kinds: ["", ...frames.map((frame) => KINDS[frame[0]])],
    files: ["", ...frames.map((frame) => `${frame.slice(2)}.py:1`)],
  });
  for (const [stack, value] of Object.entries(stacks)) {
    tree.add(stack.split(" ").reduce((node, frame) => tree.child(node, frames.indexOf(frame) + 1), 0), value);
  }
  const whole = Object.values(stacks).reduce((sum, value) => sum + value, 0);
  return flameOf(tree, { unit: "count", whole, folded: 0 }).flame;
}

/** The stacks of a flame graph with what each has of its own, root first. */
function stacksOf(flame) {
  const paths = [];
  const found = {};
  const own = ownValues(flame);
  for (let bar = 0; bar < flame.count; bar++) {
    paths[bar] = bar ? [...paths[flame.parent[bar]], flame.names[flame.name[bar]]] : [];
    if (own[bar] > 0) found[paths[bar].join(" ")] = own[bar];
  }
  return found;
}

const totalsOf = (flame) => Object.fromEntries(functionsOf(flame).map(({ name, total }) => [flame.names[name], total]));

test("native and kernel frames fold into their Python caller, CUDA kernels stay under it", () => {
  const flame = graph({ "p:main n:call p:step n:launch c:gemm": 7, "p:main n:call k:futex": 2, "p:main": 1, "n:thread k:futex": 4 });
  const folded = foldFlame(flame, { python: true });
  assert.deepEqual(stacksOf(folded), { "main step gemm": 7, main: 3, "[no Python frames]": 4 });
  assert.equal(folded.whole, 14);
  assert.equal(folded.total[0], 14);
});

test("native frames without Python keep the mark that they have", () => {
  assert.deepEqual(stacksOf(foldFlame(graph({ "m:[no_Python_frames] n:worker": 4, "n:loose": 1 }), { python: true })), { "[no Python frames]": 5 });
});

test("a repeated frame or sequence counts as recursion, a function that only comes again doesn't", () => {
  const collapse = (stacks) => stacksOf(foldFlame(graph(stacks), { recursion: true }));
  assert.deepEqual(collapse({ "p:a p:a p:a p:b": 3, "p:a": 1 }), { "a b": 3, a: 1 });
  assert.deepEqual(collapse({ "p:x p:a p:b p:a p:b p:a p:b p:c": 2 }), { "x a b c": 2 });
  assert.deepEqual(collapse({ "p:a p:b p:c p:a p:d": 2 }), { "a b c a d": 2 });
  assert.deepEqual(collapse({ "p:a p:b p:a": 5, "p:a p:b p:a p:b p:c": 1 }), { "a b a": 5, "a b c": 1 });
});

test("folding recursion changes no function's total", () => {
  const flame = graph({ "p:a p:b p:a p:b p:c": 3, "p:a p:a": 2, "p:c p:b p:b p:a": 4 });
  assert.deepEqual(totalsOf(foldFlame(flame, { recursion: true })), totalsOf(flame));
});

test("without a wish the graph stays the same object", () => {
  const flame = graph({ "p:a": 1 });
  assert.equal(foldFlame(flame, { python: false, recursion: false }), flame);
});

test("leaf first: functions with own values under the root, their callers below", () => {
  const flame = invertFlame(graph({ "p:main p:a c:k": 5, "p:main p:b c:k": 2, "p:main p:a": 1 }));
  assert.deepEqual(stacksOf(flame), { "k a main": 5, "k b main": 2, "a main": 1 });
  assert.equal(flame.total[0], 8);
  assert.equal(flame.leafFirst, true);
});

test("callers and callees of a function, recursion counted once", () => {
  const flame = graph({ "p:main p:f p:g": 3, "p:main p:h p:f": 2, "p:main p:f p:x p:f p:g": 4, "p:main p:h": 9 });
  const { callers, callees, value } = sandwichOf(flame, { name: "f" });
  assert.equal(value, 9);
  assert.deepEqual(stacksOf(callers), { main: 7, "h main": 2 });
  assert.deepEqual(stacksOf(callees), { "": 2, g: 3, "x f g": 4 });
  assert.equal(callees.names[callees.name[0]], "f");
  assert.equal(callees.whole, 18);
  assert.equal(totalsOf(flame).f, value);
});

test("the nearest callers, and the nearest in Python behind native ones", () => {
  const { callers } = sandwichOf(graph({ "p:main p:a n:call n:launch": 5, "p:main p:b n:launch": 2, "p:a n:call n:launch": 1 }), { name: "launch" });
  const named = (found) => found.map(({ name, value }) => [callers.names[name], value]);
  assert.deepEqual(named(nearestOf(callers)), [["call", 6], ["b", 2]]);
  assert.deepEqual(named(nearestOf(callers, "python")), [["a", 6], ["b", 2]]);
});

test("a function is told from its namesake by the file, and one that isn't there is null", () => {
  const flame = buildFlame({
    names: ["total", "run", "run"], kinds: ["", "python", "python"], files: ["", "a.py:3", "b.py:9"],
    levels: [[0, 9, 0, 0], [0, 5, 5, 1, 0, 4, 4, 2]], total: 9, unit: "count",
  });
  assert.equal(sandwichOf(flame, { name: "run" }).value, 9);
  assert.equal(sandwichOf(flame, { name: "run", file: "b.py" }).value, 4);
  assert.equal(sandwichOf(flame, { name: "walk" }), null);
});

test("a root function has no callers but its value", () => {
  const { callers } = sandwichOf(graph({ "p:main p:f": 3 }), { name: "main" });
  assert.deepEqual([callers.count, callers.total[0]], [1, 3]);
});

test("what doesn't fit into a tree is other, and nothing is lost", () => {
  const size = 2000;
  const names = ["total", "walk", ...Array.from({ length: size }, (_, i) => `leaf${i}`)];
  const levels = [[0, size, 0, 0], ...Array.from({ length: size }, () => [0, size, 0, 1])];
  levels.push(Array.from({ length: size }, (_, i) => [0, 1, 1, i + 2]).flat());
  const flame = buildFlame({ names, kinds: names.map((_, i) => (i ? "python" : "")), files: names.map(() => ""), levels, total: size, unit: "count" });
  const inverted = invertFlame(flame);
  assert.equal(inverted.total[0], size);
  const other = totalsOf(inverted).other;
  assert.ok(other > 0 && other < size);
});

test("an empty graph has no other shape", () => {
  const none = buildFlame({ names: ["total"], kinds: [""], files: [""], levels: [], total: 0 });
  assert.equal(foldFlame(none, { python: true }).count, 0);
  assert.equal(invertFlame(none).count, 0);
  assert.equal(sandwichOf(none, { name: "x" }), null);
});

const LEFT = graph({ "p:main p:old": 30, "p:main p:work": 60, "p:main n:io": 10 });
const RIGHT = graph({ "p:main p:new": 20, "p:main p:work": 20, "p:main n:io": 10 });

test("a difference has both sides' values and the change of the shares", () => {
  const diff = diffFlames(LEFT, RIGHT);
  const facts = Object.fromEntries([...diff.name].map((name, bar) => [diff.names[name], [diff.left[bar], diff.right[bar], Math.round(100 * diff.change[bar])]]));
  assert.deepEqual(facts, {
    total: [100, 50, 0], main: [100, 50, 0], old: [30, 0, -30], new: [0, 20, 40], work: [60, 20, -20], io: [10, 10, 10],
  });
  assert.ok(Math.abs(diff.total[0] - 1) < 1e-9);
  assert.deepEqual(diff.wholes, [100, 50]);
});

test("a side without samples leaves the other one as it is", () => {
  const none = buildFlame({ names: ["total"], kinds: [""], files: [""], levels: [], total: 0, unit: "count" });
  const diff = diffFlames(none, RIGHT);
  assert.deepEqual([diff.total[0], diff.change[0], diff.count], [1, 1, RIGHT.count]);
  assert.equal(diffFlames(none, none).count, 0);
});

test("changed functions are sorted by the change, and tell what was added and removed", () => {
  const found = sortChanges(changedFunctions(LEFT, RIGHT), "self");
  assert.deepEqual(found.map((entry) => [entry.name, fateOf(entry)]),
    [["new", "added"], ["old", "removed"], ["work", ""], ["io", ""], ["main", ""]]);
  assert.deepEqual(found[2].left, { self: 0.6, total: 0.6 });
});

test("an answer of two sides is two graphs", () => {
  const answer = {
    names: ["total", "a", "b", "c"], kinds: ["", "python", "python", "cuda"], files: ["", "a.py:1", "b.py:2", ""], unit: "count",
    left_total: 10, right_total: 6, other: 0,
    levels: [[0, 10, 0, 0, 6, 0, 0], [0, 4, 4, 0, 0, 0, 1, 0, 6, 1, 0, 6, 0, 2], [4, 5, 5, 0, 0, 0, 1, 0, 0, 0, 0, 6, 6, 3]],
  };
  const { left, right } = splitAnswer(answer);
  assert.deepEqual(stacksOf(left), { a: 4, b: 1, "b a": 5 });
  assert.deepEqual(stacksOf(right), { "b c": 6 });
  assert.deepEqual([left.whole, right.whole], [10, 6]);
});
