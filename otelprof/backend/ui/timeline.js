/**
 * The time line above the flame graph: values over time on a canvas; dragging selects the range that is shown below.
 *
 * Events: `select` (detail: {from, until} or null), `widen` (detail: {from, until}: a double click on the selection).
 */
import { fitCanvas } from "./flame_draw.js";
import { bucketsOf, ticksOf } from "./time_axis.js";
import { formatClock, formatRange, formatSpan, formatTime, formatValue } from "./units.js";

const AXIS = 20;
const SLOP = 4;
const DAY = 86_400e3;

export class Timeline extends EventTarget {
  #canvas = document.createElement("canvas");
  #asked = false;
  #drag = null;
  #pointer = null;
  #data = { buckets: [], range: { from: 0, until: 1 }, step: 1, unit: "" };

  /** `element` holds the drawing, `note` the words about what the pointer is on. */
  constructor(element, note) {
    super();
    this.element = element;
    this.note = note;
    this.selection = null;
    element.append(this.#canvas);
    new ResizeObserver(() => this.paint()).observe(element);
    this.#listen();
  }

  setData(points, range, step, unit) {
    this.#data = { buckets: bucketsOf(points, step, range), range, step, unit };
    this.#tell();
    this.paint();
  }

  setSelection(selection) {
    this.selection = selection;
    this.paint();
  }

  paint() {
    if (this.#asked) return;
    this.#asked = true;
    requestAnimationFrame(() => this.#draw());
  }

  #listen() {
    const { element } = this;
    element.addEventListener("pointerdown", (event) => this.#press(event));
    element.addEventListener("pointermove", (event) => this.#move(event));
    element.addEventListener("pointerup", (event) => this.#release(event));
    element.addEventListener("pointercancel", () => this.#forget());
    element.addEventListener("pointerleave", () => this.#leave());
    element.addEventListener("dblclick", (event) => this.#double(event));
  }

  #press(event) {
    if (event.button !== 0) return;
    this.element.setPointerCapture(event.pointerId);
    this.#drag = { begin: this.#x(event), end: this.#x(event) };
  }

  #move(event) {
    this.#pointer = this.#x(event);
    if (this.#drag) this.#drag.end = this.#pointer;
    this.#tell();
    this.paint();
  }

  #release(event) {
    const drag = this.#drag;
    this.#forget();
    if (!drag) return;
    const wide = Math.abs(drag.end - drag.begin) > SLOP;
    if (wide) this.#emit("select", this.#span(drag));
    else if (this.selection && event.detail < 2 && !this.#inside(drag.end)) this.#emit("select", null);
  }

  #double(event) {
    if (this.selection && this.#inside(this.#x(event))) this.#emit("widen", this.selection);
  }

  #leave() {
    this.#pointer = null;
    this.#tell();
    this.paint();
  }

  #forget() {
    this.#drag = null;
    this.paint();
  }

  #emit(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }

  #x(event) {
    const edge = this.element.getBoundingClientRect();
    return Math.min(Math.max(event.clientX - edge.left, 0), edge.width);
  }

  #inside(x) {
    const at = this.#timeAt(x);
    return at >= this.selection.from && at <= this.selection.until;
  }

  #timeAt(x) {
    const { from, until } = this.#data.range;
    return from + ((until - from) * x) / Math.max(1, this.element.clientWidth);
  }

  #xOf(time) {
    const { from, until } = this.#data.range;
    return ((time - from) / (until - from)) * this.element.clientWidth;
  }

  #span({ begin, end }) {
    return { from: Math.floor(this.#timeAt(Math.min(begin, end))), until: Math.ceil(this.#timeAt(Math.max(begin, end))) };
  }

  /** What the pointer is on, or the range of the drag. */
  #tell() {
    this.note.textContent = this.#words();
  }

  #words() {
    if (this.#pointer === null) return this.#peak();
    if (this.#drag && Math.abs(this.#drag.end - this.#drag.begin) > SLOP) {
      const { from, until } = this.#span(this.#drag);
      return `${formatRange(from, until)} · ${formatSpan(until - from)}`;
    }
    const at = this.#timeAt(this.#pointer);
    const bucket = this.#data.buckets.find((candidate) => candidate.from <= at && at < candidate.until);
    const value = bucket ? ` · ${formatValue(bucket.value, this.#data.unit)} in ${formatSpan(this.#data.step * 1000)}` : "";
    return `${formatTime(at)}${value}`;
  }

  #peak() {
    const most = Math.max(...this.#data.buckets.map((bucket) => bucket.value), 0);
    return most ? `peak ${formatValue(most, this.#data.unit)} in ${formatSpan(this.#data.step * 1000)}` : "";
  }

  #draw() {
    this.#asked = false;
    const [width, height] = [this.element.clientWidth, this.element.clientHeight];
    if (!width || !height) return;
    fitCanvas(this.#canvas, width, height);
    const paint = this.#canvas.getContext("2d");
    const ratio = this.#canvas.width / width;
    paint.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint.clearRect(0, 0, width, height);
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    this.#drawAxis(paint, { width, height, colour });
    this.#drawBuckets(paint, { height: height - AXIS, colour });
    this.#drawSelection(paint, { width, height: height - AXIS, colour });
    this.#drawPointer(paint, { height: height - AXIS, colour });
  }

  #drawAxis(paint, { width, height, colour }) {
    const { range } = this.#data;
    const ticks = ticksOf(range, width);
    const seconds = ticks.length > 1 && ticks[1] - ticks[0] < 60e3;
    paint.font = `11px ${colour("--sans")}`;
    paint.textBaseline = "alphabetic";
    paint.textAlign = "center";
    for (const tick of ticks) {
      const x = Math.round(this.#xOf(tick)) + 0.5;
      paint.fillStyle = colour("--grid");
      paint.fillRect(x - 0.5, 0, 1, height - AXIS);
      const label = range.until - range.from > DAY ? formatTime(tick).slice(5, 16) : formatClock(tick, seconds);
      const half = paint.measureText(label).width / 2;
      paint.fillStyle = colour("--ink-3");
      if (x > half && x < width - half) paint.fillText(label, x, height - 5);
    }
    paint.fillStyle = colour("--line");
    paint.fillRect(0, height - AXIS, width, 1);
  }

  #drawBuckets(paint, { height, colour }) {
    const { buckets } = this.#data;
    const most = Math.max(...buckets.map((bucket) => bucket.value), 0);
    if (!most) return;
    for (const bucket of buckets) {
      const [left, right] = [this.#xOf(bucket.from), this.#xOf(bucket.until)];
      const tall = Math.max((bucket.value / most) * (height - 8), bucket.value > 0 ? 1 : 0);
      paint.fillStyle = colour(this.#isShown(bucket) ? "--series" : "--series-off");
      paint.fillRect(left, height - tall, Math.max(right - left - (right - left > 3 ? 1 : 0), 0.5), tall);
    }
  }

  #isShown(bucket) {
    return !this.selection || (bucket.until > this.selection.from && bucket.from < this.selection.until);
  }

  #drawSelection(paint, { height, colour }) {
    const dragged = this.#drag && Math.abs(this.#drag.end - this.#drag.begin) > SLOP ? this.#span(this.#drag) : null;
    const shown = dragged ?? this.selection;
    if (!shown) return;
    const [left, right] = [this.#xOf(shown.from), this.#xOf(shown.until)];
    paint.fillStyle = colour("--selection");
    paint.fillRect(left, 0, right - left, height);
    paint.fillStyle = colour("--accent");
    for (const x of [left, right]) paint.fillRect(Math.round(x) - 1, 0, 2, height);
  }

  #drawPointer(paint, { height, colour }) {
    if (this.#pointer === null || this.#drag) return;
    paint.fillStyle = colour("--ink-3");
    paint.fillRect(Math.round(this.#pointer), 0, 1, height);
  }
}
