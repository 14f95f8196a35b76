// State, address, selectors, units, types and time axis of the page. Run by tests/unit/test_page_modules.py.
import assert from "node:assert/strict";
import { test } from "node:test";

import { formatCompare, parseCompare, withSpan } from "../../../otelprof/backend/ui/compare_state.js";
import { defaultType, groupOf, sortTypes, titleOf, unitOf } from "../../../otelprof/backend/ui/profile_types.js";
import { complete, completionAt, selectorOf, serviceOf, withService } from "../../../otelprof/backend/ui/selector.js";
import { fixed, formatState, isOpen, live, parseState, shownRange, windowRange } from "../../../otelprof/backend/ui/state.js";
import { extentOf, treeOf } from "../../../otelprof/backend/ui/span_tree.js";
import { bucketsOf, stepOf, ticksOf } from "../../../otelprof/backend/ui/time_axis.js";
import { formatPoints, formatShare, formatSpan, formatValue } from "../../../otelprof/backend/ui/units.js";

const NOW = 1_796_000_000_000;

test("an address with times in milliseconds is a fixed range", () => {
  const state = parseState("?type=T&query=%7Ba%3D%22b%22%7D&from=1000&until=5000&search=x&zoom=ff");
  assert.deepEqual([state.type, state.query, state.search, state.zoom], ["T", '{a="b"}', "x", 255]);
  assert.deepEqual(shownRange(state, NOW), { from: 1000, until: 5000 });
  assert.equal(isOpen(state, NOW), false);
  assert.equal(isOpen(state, 3000), true);
});

test("relative times move on, and what can't be read gets its default", () => {
  assert.deepEqual(windowRange(parseState("?from=now-5m&until=now"), NOW), { from: NOW - 300e3, until: NOW });
  for (const odd of ["", "?from=x&until=y", "?from=now-0m", "?from=now-99999d", "?from=5&until=5", "?zoom=%3Cb%3E&pane=none"]) {
    const state = parseState(odd);
    assert.deepEqual([state.window, state.zoom, state.pane, state.query], [live(300e3), 0, "both", "{}"], odd);
  }
  assert.deepEqual(parseState("?from=9&until=2").window, fixed(2, 9));
});

test("a state survives its address", () => {
  const states = [
    { type: "a:b:c:d:e", query: '{service_name="a & b"}', window: live(900e3), selection: null, search: "", zoom: 0, pane: "both" },
    { type: "T", query: "{}", window: live(3600e3), selection: { from: 10, until: 20 }, search: "x y", zoom: 4294967295, pane: "flame" },
    { type: "T", query: "{}", window: fixed(5, 50), selection: { from: 10, until: 20 }, search: "", zoom: 1, pane: "table" },
  ];
  const plain = { around: "", file: "", span: "", trace: "", python: false, recursion: false, invert: false, flip: false };
  const shaped = { around: "a & b", file: "x.py", span: "00f067aa0ba902b7", trace: "a".repeat(32), python: true, recursion: true, invert: true, flip: true };
  for (const shape of [plain, shaped]) {
    for (const state of states) assert.deepEqual(parseState(formatState({ ...state, ...shape })), { ...state, ...shape });
  }
});

test("a selector is completed where the caret stands", () => {
  const at = (text) => {
    const found = completionAt(text, text.length);
    return found && [found.kind, found.label, found.typed];
  };
  assert.deepEqual(at("{"), ["name", "", ""]);
  assert.deepEqual(at('{a="b,{", serv'), ["name", "", "serv"]);
  assert.deepEqual(at('{pod=~"x-'), ["value", "pod", "x-"]);
  assert.deepEqual(at("{pod="), ["value", "pod", ""]);
  assert.equal(at('{pod="x" '), null);
});

test("a completed selector can be sent", () => {
  const take = (text, choice) => complete(text, text.length, completionAt(text, text.length), choice).text;
  assert.equal(take("{po", "pod"), "{pod=}");
  assert.equal(take('{a="1", pod="x', 'x"1'), '{a="1", pod="x\\"1"}');
  assert.equal(take("", "pod"), "{pod=}");
  assert.equal(complete('{pod=x}', 6, completionAt("{pod=x}", 6), "xy").text, '{pod="xy"}');
});

test("from and until in the address are what the flame graph shows", () => {
  const state = { ...parseState(""), selection: { from: 10, until: 20 } };
  assert.match(formatState(state), /from=10&until=20&window=now-5m%7Enow/);
});

test("a selector gets another service and keeps the rest", () => {
  assert.equal(withService("{}", "web"), '{service_name="web"}');
  assert.equal(withService('{service_name="web"}', ""), "{}");
  assert.equal(withService('{env="a,b", service_name="web", x!="y"}', 'q"t'), '{service_name="q\\"t", env="a,b", x!="y"}');
  assert.equal(withService('{service.name="web",env="dev"}', ""), '{env="dev"}');
  assert.equal(serviceOf(selectorOf('a"\\b')), 'a"\\b');
  assert.equal(serviceOf('{my_service_name="x"}'), "");
});

test("values read as people write them", () => {
  const shown = [[1_234_000_000, "nanoseconds"], [999, "nanoseconds"], [15_150_000, "nanoseconds"], [300e9, "nanoseconds"],
    [1536, "bytes"], [512, "bytes"], [9999, "count"], [2_500_000, "count"], [3, "widgets"], [0, "nanoseconds"]];
  assert.deepEqual(shown.map((args) => formatValue(...args)),
    ["1.23 s", "999 ns", "15.2 ms", "5.00 min", "1.50 KiB", "512 B", "9,999", "2.50 M", "3 widgets", "0 ns"]);
});

test("shares and spans are short", () => {
  assert.deepEqual([formatShare(1, 3), formatShare(1, 1), formatShare(1, 1e9), formatShare(0, 5), formatShare(1, 0)],
    ["33.3 %", "100 %", "<0.01 %", "0 %", "0 %"]);
  assert.deepEqual([500, 45e3, 900e3, 21_600e3, 864_000e3].map(formatSpan), ["500 ms", "45 s", "15 min", "6 h", "10 d"]);
});

test("types have titles, groups and an order", () => {
  const cpu = "process_cpu:cpu:nanoseconds:cpu:nanoseconds";
  const launches = "gpu:gpu_kernel_launches:count:gpu:count";
  assert.deepEqual([titleOf(cpu), titleOf(launches), titleOf("memory:alloc_space:bytes:space:bytes")],
    ["CPU time", "GPU kernel launches", "Alloc space (memory)"]);
  assert.deepEqual([groupOf(launches), unitOf(cpu), defaultType([launches, cpu]), defaultType([])], ["GPU", "nanoseconds", cpu, ""]);
  assert.deepEqual(sortTypes(["zzz:z:z::", launches, cpu]), [cpu, launches, "zzz:z:z::"]);
});

test("steps give at most 180 points, ticks stand on round times", () => {
  for (const span of [60e3, 900e3, 86_400e3, 3e9, 1e12]) assert.ok(span / 1000 / stepOf({ from: 0, until: span }) <= 180, String(span));
  const ticks = ticksOf({ from: NOW, until: NOW + 900e3 }, 900);
  assert.ok(ticks.length >= 5 && ticks.length <= 10);
  assert.ok(ticks.every((tick) => tick % 60e3 === 0));
});

test("a bucket is the step after its point, outside of the range there is none", () => {
  const buckets = bucketsOf([[-10_000, 5], [0, -1], [10_000, 7], [20_000, 3]], 10, { from: 1000, until: 20_000 });
  assert.deepEqual(buckets, [{ from: 0, until: 10_000, value: 0 }, { from: 10_000, until: 20_000, value: 7 }]);
});

test("a comparison without ranges has the halves of its span, and survives its address", () => {
  const state = parseCompare("?type=T&query=%7Ba%3D%22b%22%7D&from=now-10m&until=now", NOW);
  assert.deepEqual([state.left, state.right], [
    { query: '{a="b"}', from: NOW - 600e3, until: NOW - 300e3 }, { query: '{a="b"}', from: NOW - 300e3, until: NOW },
  ]);
  const other = { ...state, left: { query: "{}", from: 5, until: 9 }, view: "table", order: "total", search: "x", python: true, flip: true };
  for (const one of [state, other, withSpan(other, { from: 0, until: 100 })]) assert.deepEqual(parseCompare(formatCompare(one), NOW), one);
});

test("odd addresses of a comparison give a whole state", () => {
  const state = parseCompare("?left_from=9&left_until=3&right_from=x&right_until=%3Cb%3E&view=none&order=z", NOW);
  assert.deepEqual([state.left.from, state.left.until, state.right.until, state.view, state.order], [3, 9, NOW, "diff", "self"]);
});

test("changes are told in points", () => {
  assert.deepEqual([0.2114, -0.0071, 0, 0.00001, -0.5].map(formatPoints), ["+21.1", "\u22120.71", "0", "0", "\u221250.0"]);
});

test("spans stand under their parents by their start; orphans and circles are roots", () => {
  const span = (id, parent, start) => ({ span: id, parent, start_us: start, duration_ns: 5000 });
  const rows = (spans) => treeOf(spans).map(({ span: { span: id }, depth }) => `${depth}${id}`);
  assert.deepEqual(rows([span("c", "a", 9), span("a", "", 1), span("b", "a", 3), span("d", "b", 4), span("x", "gone", 2)]), ["0a", "1b", "2d", "1c", "0x"]);
  assert.deepEqual(rows([span("a", "b", 1), span("b", "a", 2), span("s", "s", 3)]).sort(), ["0a", "0s", "1b"]);
  assert.deepEqual(extentOf([span("a", "", 10), span("b", "a", 0), span("c", "a", 12)]), { from: 10, until: 17 });
  assert.equal(extentOf([span("a", "", 0)]), null);
});
