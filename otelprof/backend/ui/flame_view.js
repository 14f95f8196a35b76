/**
 * The flame graph on the page: keeps data, view and marks together, moves between them and paints.
 *
 * Says what it shows in the data attributes of its element (state, total, frames, depth, other) and tells its owner about
 * its marks by events: `zoom` (detail: bar), `hover` (detail: {box, bar, merged, value, x, y} or null), `mark` (the keys' bar), and
 * what `flame_input.js` asks for: `menu` (detail: as for hover), `copy` and `around` (detail: bar).
 */
import { ancestors, findPath, levelOf } from "./flame_data.js";
import { drawFlame, fitCanvas, ROW, topOf } from "./flame_draw.js";
import { boxAt, boxOf, layOut, viewOf } from "./flame_layout.js";
import { between, Motion, moved, placesOf } from "./motion.js";
import { coloursOf, fillOf } from "./palette.js";

/** Pixels below the last row. */
const SPARE = 4;
const NOTHING = { levels: 0, rows: [0], x: [], width: [], bar: [], merged: [], value: [], frames: 0, other: 0 };

export class FlameView extends EventTarget {
  #canvas = document.createElement("canvas");
  #space = document.createElement("div");
  #motion = new Motion();
  #palette;
  #colours = [];
  #fill = () => "";
  #flipped = false;
  #shown = NOTHING;
  #asked = false;
  #lineage = [];
  #spot = null;

  /** `element` becomes the scrolling frame of the graph. */
  constructor(element, palette) {
    super();
    this.element = element;
    this.flame = null;
    this.layout = NOTHING;
    this.zoom = 0;
    this.hover = -1;
    this.focus = -1;
    this.matches = null;
    this.#palette = palette;
    this.#space.className = "flame-space";
    this.#space.append(this.#canvas);
    element.append(this.#space);
    element.addEventListener("scroll", () => this.paint(), { passive: true });
    new ResizeObserver(() => this.resize()).observe(element);
  }

  /** Fills of the names of the graph that is shown. */
  get colours() {
    return this.#colours;
  }

  /** What fills a bar, by its number. */
  get fill() {
    return this.#fill;
  }

  /** True while the root stands at the bottom. */
  get flipped() {
    return this.#flipped;
  }

  set flipped(flipped) {
    if (flipped === this.#flipped) return;
    this.#flipped = flipped;
    this.element.scrollTop = flipped ? this.#full : 0;
    this.paint();
  }

  /** Width of the drawing in CSS pixels. */
  get width() {
    return Math.max(1, this.element.clientWidth);
  }

  /** Says loading, ready, empty or error; scripts and tests wait for it. */
  setState(state) {
    this.element.dataset.state = state;
  }

  /** Shows other data, zoomed to the bar with this path (0: all) or, when it is gone, to the nearest one that was above it. */
  setFlame(flame, zoomPath = 0) {
    const places = this.flame && this.layout.levels ? placesOf(this.flame, this.layout) : null;
    const focus = this.focus >= 0 ? this.flame.path[this.focus] : 0;
    const wanted = zoomPath ? [zoomPath, ...this.#lineage] : [];
    this.flame = flame;
    this.zoom = wanted.map((path) => findPath(flame, path)).find((bar) => bar > 0) ?? 0;
    this.focus = focus ? findPath(flame, focus) || -1 : -1;
    this.hover = -1;
    this.#colour();
    this.#remember();
    this.#arrange();
    this.#motion.run((t) => this.#show(places && t < 1 ? moved(flame, this.layout, places, t) : this.layout));
    if (this.#spot) this.hoverAt(this.at(this.#spot.x, this.#spot.y));
  }

  /** Nothing to show: no data or no answer. */
  clear() {
    this.#motion.stop();
    this.flame = null;
    this.hover = -1;
    this.focus = -1;
    this.layout = NOTHING;
    this.#describe();
    this.#show(NOTHING);
  }

  setPalette(palette) {
    this.#palette = palette;
    if (this.flame) this.#colour();
    this.paint();
  }

  /** A mask over names that stay in colour, or null. */
  setMatches(matches) {
    this.matches = matches;
    this.paint();
  }

  /** Brings a bar to full width. */
  zoomTo(bar) {
    if (!this.flame || bar === this.zoom) return;
    const before = viewOf(this.flame, this.zoom);
    const after = viewOf(this.flame, bar);
    const flame = this.flame;
    this.zoom = bar;
    this.focus = bar > 0 ? bar : -1;
    this.#remember();
    this.#arrange();
    this.#motion.run((t) => this.#show(t < 1 ? layOut(flame, between(before, after, t), this.width) : this.layout));
    this.reveal(bar);
    this.dispatchEvent(new CustomEvent("zoom", { detail: bar }));
  }

  /** Puts the keyboard's mark on a bar and scrolls to it; a bar outside of the zoom widens that first. */
  focusOn(bar) {
    if (!this.flame) return;
    this.focus = bar;
    if (boxOf(this.layout, levelOf(this.flame, bar), bar) < 0) this.zoomTo(this.#holder(bar));
    this.focus = bar;
    this.reveal(bar);
    this.paint();
    this.dispatchEvent(new CustomEvent("hover", { detail: this.spotOf(bar) }));
    this.dispatchEvent(new CustomEvent("mark", { detail: bar }));
  }

  /** Scrolls so that a bar's row can be seen. */
  reveal(bar) {
    const top = this.#topOf(levelOf(this.flame, bar));
    const { scrollTop, clientHeight } = this.element;
    if (top < scrollTop) this.element.scrollTop = Math.max(0, top - ROW);
    else if (top + 2 * ROW > scrollTop + clientHeight) this.element.scrollTop = top + 2 * ROW - clientHeight;
  }

  /** What stands at a point of the window, or null. */
  at(clientX, clientY) {
    const edge = this.element.getBoundingClientRect();
    const y = clientY - edge.top + this.element.scrollTop;
    const row = Math.floor((this.#flipped ? this.#full - y : y) / ROW);
    const box = this.flame ? boxAt(this.layout, row, clientX - edge.left) : -1;
    if (box < 0) return null;
    const { bar, merged, value } = this.layout;
    return { box, bar: bar[box], merged: merged[box], value: value[box], x: clientX, y: clientY };
  }

  /** Marks what the pointer is on and tells the owner. */
  hoverAt(spot) {
    this.#spot = spot;
    const bar = spot && !spot.merged ? spot.bar : -1;
    if (bar !== this.hover) {
      this.hover = bar;
      this.paint();
    }
    this.dispatchEvent(new CustomEvent("hover", { detail: spot }));
  }

  resize() {
    if (this.flame) this.#arrange();
    this.#show(this.layout);
  }

  /** Asks for one drawing in the next frame. */
  paint() {
    if (this.#asked) return;
    this.#asked = true;
    requestAnimationFrame(() => this.#draw());
  }

  #arrange() {
    const fromBottom = this.#full - this.element.scrollTop;
    this.layout = layOut(this.flame, viewOf(this.flame, this.zoom), this.width);
    this.#space.style.height = `${this.layout.levels * ROW + SPARE}px`;
    if (this.#flipped) this.element.scrollTop = this.#full - fromBottom;
    this.#describe();
  }

  /** Height of all rows, at least that of the element: what is flipped stands on its lower edge. */
  get #full() {
    return Math.max(this.layout.levels * ROW + SPARE, this.element.clientHeight);
  }

  #topOf(row) {
    return topOf(row, { flipped: this.#flipped, full: this.#full });
  }

  #colour() {
    this.#colours = coloursOf(this.#palette, this.flame);
    this.#fill = fillOf(this.#palette, this.flame, this.#colours);
  }

  #show(layout) {
    this.#shown = layout;
    this.paint();
  }

  #draw() {
    this.#asked = false;
    const { clientHeight, scrollTop } = this.element;
    const width = this.width;
    fitCanvas(this.#canvas, width, Math.max(1, clientHeight));
    drawFlame(this.#canvas, {
      flame: this.flame, layout: this.#shown, fill: this.#fill, palette: this.#palette, width, height: clientHeight,
      scroll: scrollTop, flipped: this.#flipped, full: this.#full, zoomRow: this.flame ? levelOf(this.flame, this.zoom) : 0, matches: this.matches,
      hover: this.hover, focus: this.focus,
    });
  }

  #describe() {
    const { dataset } = this.element;
    const wholes = this.flame?.wholes ?? [this.flame?.whole ?? 0];
    dataset.total = String(wholes.reduce((sum, whole) => sum + whole, 0));
    dataset.frames = String(this.layout.frames);
    dataset.depth = String(this.layout.levels);
    dataset.other = String(this.layout.other);
  }

  /** Paths from the zoomed bar up, to find it again in other data. */
  #remember() {
    this.#lineage = ancestors(this.flame, this.zoom).reverse().map((bar) => this.flame.path[bar]);
  }

  /** The nearest bar above `bar` at whose zoom it is wide enough to be seen. */
  #holder(bar) {
    const wide = ancestors(this.flame, bar).find((above) => (this.flame.total[bar] / this.flame.total[above]) * this.width >= 4);
    return wide ?? bar;
  }

  /** Where a bar is shown, as `at` says it, or null. */
  spotOf(bar) {
    const row = levelOf(this.flame, bar);
    const box = boxOf(this.layout, row, bar);
    if (box < 0) return null;
    const edge = this.element.getBoundingClientRect();
    const middle = this.layout.x[box] + Math.min(this.layout.width[box] / 2, 120);
    const y = edge.top + this.#topOf(row) + ROW - this.element.scrollTop;
    return { box, bar, merged: 0, value: this.layout.value[box], x: edge.left + middle, y };
  }
}
