// Flame graphs as data: reading answers, laying out, searching, summing, exporting. Run by tests/unit/test_page_modules.py.
import assert from "node:assert/strict";
import { test } from "node:test";

import { ancestors, buildFlame, findPath, levelOf } from "../../../otelprof/backend/ui/flame_data.js";
import { boxAt, boxOf, layOut, viewOf } from "../../../otelprof/backend/ui/flame_layout.js";
import { searchFlame } from "../../../otelprof/backend/ui/flame_search.js";
import { functionsOf, kindsOf, sortFunctions } from "../../../otelprof/backend/ui/functions.js";
import { escapeXml, svgOf } from "../../../otelprof/backend/ui/svg_export.js";

const NAMES = ["total", "main", "loop", "[cuda] flash", "other"];
const ANSWER = {
  names: NAMES, kinds: ["", "python", "python", "cuda", ""], files: ["", "a.py:1", "a.py:9", "", ""],
  levels: [[0, 100, 0, 0], [0, 90, 10, 1, 0, 10, 10, 4], [0, 60, 20, 2, 10, 20, 20, 3], [0, 40, 5, 2], [5, 35, 35, 3]],
  total: 100, other: 10, max_self: 35, unit: "count",
};
const flame = buildFlame(ANSWER);

test("bars keep their places, parents and children", () => {
  assert.deepEqual([...flame.start], [0, 0, 90, 0, 70, 0, 5]);
  assert.deepEqual([...flame.parent], [-1, 0, 0, 1, 1, 3, 5]);
  assert.deepEqual([flame.childFrom[1], flame.childUntil[1]], [3, 5]);
  assert.equal(flame.childFrom[2], flame.childUntil[2]);
  assert.deepEqual(ancestors(flame, 6), [0, 1, 3, 5, 6]);
  assert.deepEqual([0, 1, 2, 3, 4, 5, 6].map((bar) => levelOf(flame, bar)), [0, 1, 1, 2, 2, 3, 4]);
});

test("a bar is found by its path in newer data, and the root stands in for one that is gone", () => {
  const grown = buildFlame({ ...ANSWER, levels: [[0, 200, 0, 0], [0, 50, 50, 3, 0, 150, 10, 1], [50, 140, 140, 2]], total: 200 });
  assert.equal(findPath(grown, flame.path[3]), 3);
  assert.equal(findPath(grown, flame.path[6]), 0);
});

test("a place in the file doesn't change a path, another file does", () => {
  const line = buildFlame({ ...ANSWER, files: ["", "a.py:1", "a.py:77", "", ""] });
  const file = buildFlame({ ...ANSWER, files: ["", "b.py:1", "a.py:9", "", ""] });
  assert.deepEqual(line.path, flame.path);
  assert.notEqual(file.path[1], flame.path[1]);
});

test("negative and oversized values draw nothing outside of the parent", () => {
  const odd = buildFlame({ ...ANSWER, levels: [[0, 100, 0, 0], [-5, -30, 0, 1, 20, 500, 900, 2]] });
  assert.deepEqual([...odd.total], [100, 0, 80]);
  assert.equal(odd.start[2], 20);
  assert.ok(odd.self.every((own) => own >= 0));
});

test("an answer that contradicts itself is refused, an empty one has no bars", () => {
  assert.throws(() => buildFlame({ ...ANSWER, levels: [[0, 1, 1, 9]] }), /no name/);
  const none = buildFlame({ names: ["total"], kinds: [""], files: [""], levels: [], total: 0 });
  assert.equal(none.count, 0);
  assert.equal(layOut(none, { from: 0, until: 1 }, 100).levels, 0);
});

test("characters that hide or turn a name become visible", () => {
  const odd = buildFlame({ ...ANSWER, names: ["total", "a\u202eb\n\u0000", "\u2066x", "y", "other"] });
  assert.deepEqual(odd.names.slice(1, 4), ["a\ufffdb\ufffd\ufffd", "\ufffdx", "y"]);
});

test("all bars are laid out in the root's view, folded ones are counted", () => {
  const layout = layOut(flame, viewOf(flame, 0), 1000);
  assert.deepEqual([layout.frames, layout.levels, layout.other], [7, 5, 10]);
  assert.deepEqual(layout.x.slice(1, 3), [0, 900]);
  assert.equal(layout.bar[boxAt(layout, 1, 950)], 2);
  assert.equal(boxAt(layout, 3, 900), -1);
  assert.equal(boxAt(layout, 9, 0), -1);
});

test("a zoomed view has the ancestors at full width and nothing from beside", () => {
  const layout = layOut(flame, viewOf(flame, 5), 1000);
  assert.deepEqual(layout.bar, [0, 1, 3, 5, 6]);
  assert.deepEqual(layout.width, [1000, 1000, 1000, 1000, 875]);
  assert.equal(boxOf(layout, 4, 6), 4);
  assert.equal(boxOf(layout, 2, 4), -1);
});

test("bars thinner than a pixel become one strip whose value is other", () => {
  const values = [];
  for (let i = 0; i < 1000; i++) values.push(0, 1, 1, 3);
  const thin = buildFlame({ ...ANSWER, levels: [[0, 1500, 0, 0], [0, 500, 500, 1, ...values]], total: 1500 });
  const layout = layOut(thin, viewOf(thin, 0), 300);
  assert.deepEqual([layout.frames, layout.other], [2, 1000]);
  assert.deepEqual(layout.merged, [0, 0, 1000]);
  assert.equal(layout.value[2], 1000);
});

test("a search counts recursion once and only under the zoom", () => {
  assert.equal(searchFlame(flame, "  "), null);
  assert.equal(searchFlame(flame, "LOOP").value, 60);
  assert.deepEqual(searchFlame(flame, "loop").bars, [3, 5]);
  assert.equal(searchFlame(flame, "[cuda]").value, 55);
  assert.equal(searchFlame(flame, "[cuda]", 5).value, 35);
  assert.equal(searchFlame(flame, "a.py:9").value, 60);
  assert.deepEqual(searchFlame(flame, "nowhere").bars, []);
});

test("functions sum self values and count recursion once", () => {
  const found = Object.fromEntries(functionsOf(flame).map(({ name, self, total }) => [NAMES[name], [self, total]]));
  assert.deepEqual(found, { main: [10, 90], loop: [25, 60], "[cuda] flash": [55, 55], other: [10, 10] });
  assert.deepEqual(kindsOf(functionsOf(flame), flame), { python: 35, cuda: 55, other: 10 });
  assert.deepEqual(sortFunctions(functionsOf(flame), "total", NAMES).map(({ name }) => name), [1, 2, 3, 4]);
});

test("functions under a bar leave out what stands beside it", () => {
  const found = functionsOf(flame, 5).map(({ name, self, total }) => [NAMES[name], self, total]);
  assert.deepEqual(found, [["loop", 5, 40], ["[cuda] flash", 35, 35]]);
});

test("five thousand levels need no recursion", () => {
  const levels = Array.from({ length: 5001 }, (_, i) => [0, 7, i === 5000 ? 7 : 0, i ? 2 : 0]);
  const deep = buildFlame({ ...ANSWER, levels, total: 7 });
  assert.equal(layOut(deep, viewOf(deep, 0), 500).levels, 5001);
  assert.deepEqual(functionsOf(deep).map(({ total }) => total), [7]);
  assert.equal(searchFlame(deep, "loop").value, 7);
});

test("an SVG has names as text and is well-formed whatever they hold", () => {
  const hostile = buildFlame({ ...ANSWER, names: ["total", "<img src=x onerror=1>", "a\u0000\ud800]]>\"'&b", "x", "other"] });
  const svg = svgOf(hostile, { title: "<t>", subtitle: "now", colour: () => "#123456" });
  assert.ok(svg.includes("&lt;img src=x onerror=1&gt;"));
  assert.ok(!svg.includes("<img") && !svg.includes("\u0000") && !/[\ud800-\udfff]/.test(svg));
  assert.equal(escapeXml("a\u{1f680}\ufffe"), "a\u{1f680}\ufffd");
});
