/**
 * The flame graph with all that belongs to it: the shape that is asked for, callers above, table, path, legend, search, losses.
 *
 * Events: `zoom` (detail: path of the bar, 0: all), `around` (detail: {name, file}), `search` (detail: a text).
 */
import { announce, copyText } from "./clipboard.js";
import { showCrumbs, showLegend } from "./crumbs.js";
import { placeOf } from "./flame_data.js";
import { searchFlame } from "./flame_search.js";
import { foldFlame, invertFlame, sandwichOf } from "./flame_shape.js";
import { showFunctionHead } from "./function_head.js";
import { functionsOf, kindsOf } from "./functions.js";
import { showLosses } from "./losses_note.js";
import { colourOf } from "./palette.js";
import { pngOf } from "./png_export.js";
import { svgOf } from "./svg_export.js";
import { formatShare, formatValue } from "./units.js";

/** Milliseconds until a zoom has come to rest: rows that are laid out meanwhile would hold its frames up. */
const AFTER_MOTION = 260;

export class Graph extends EventTarget {
  #raw = null;
  #base = null;
  #options = {};
  #found = null;
  #next = 0;
  #functions = [];
  #around = "";
  #timer = 0;

  /** `parts`: {view, callers, tooltip, table, menu, head, palette, crumbs, legend, found, losses}; views are FlameViews. */
  constructor(parts) {
    super();
    Object.assign(this, parts);
    this.callers.flipped = true;
    this.#listen(this.view);
    this.#listen(this.callers);
    this.view.addEventListener("zoom", ({ detail }) => this.#zoomed(detail));
    this.table.addEventListener("pick", ({ detail }) => this.#emit("search", detail));
    this.table.addEventListener("around", ({ detail }) => this.#emit("around", detail));
  }

  /** True while something is drawn. */
  get shown() {
    return Boolean(this.view.flame);
  }

  /** Shows an answer's graph in the shape that the options ask for: {python, recursion, invert, flip, around, file, zoom, search}. */
  show(flame, options) {
    this.#raw = flame;
    return this.reshape(options);
  }

  /** Shows what is loaded in another shape; false when the function that is asked for isn't in it. */
  reshape(options) {
    this.#options = options;
    if (!this.#raw) return true;
    this.#base = foldFlame(this.#raw, options);
    const around = options.around ? sandwichOf(this.#base, { name: options.around, file: options.file }) : null;
    this.#layOut(around);
    this.#showFunction(around);
    this.#describe();
    showLosses(this.losses, this.#raw);
    return !options.around || Boolean(around);
  }

  clear() {
    this.#raw = this.#base = null;
    this.view.clear();
    this.callers.clear();
    this.#showFunction(null);
    this.#describe();
    showLosses(this.losses, null);
  }

  setPalette(palette) {
    this.palette = palette;
    this.view.setPalette(palette);
    this.callers.setPalette(palette);
    if (this.view.flame) this.#describe();
  }

  search(text) {
    this.#next = 0;
    this.#options = { ...this.#options, search: text };
    this.#applySearch();
    this.#fillTable();
  }

  /** Puts the mark on the next match. */
  nextMatch(step) {
    const bars = this.#found?.bars ?? [];
    if (!bars.length) return;
    this.view.focusOn(bars[this.#next % bars.length]);
    this.#next = (this.#next + step + bars.length) % bars.length;
  }

  /** What is shown as an SVG document, null when nothing is; `title` and `subtitle` stand on top. */
  svg(words) {
    const { flame, zoom } = this.view;
    return flame && svgOf(flame, { root: zoom, ...words, colour: (name) => colourOf(this.palette, flame, name) });
  }

  /** What is shown as a picture. */
  png(words) {
    return this.view.flame ? pngOf(this.view, this.palette, words) : null;
  }

  #layOut(around) {
    const { invert, flip, zoom } = this.#options;
    this.view.flipped = flip && !around;
    if (around) this.callers.setFlame(around.callers);
    else this.callers.clear();
    if (around) this.view.setFlame(around.callees, zoom);
    else this.view.setFlame(invert ? invertFlame(this.#base) : this.#base, zoom);
  }

  #showFunction(around) {
    this.head.parentElement.classList.toggle("around", Boolean(around));
    showFunctionHead(this.head, around && {
      ...around, palette: this.palette, copy: copyText, around: (target) => this.#emit("around", target),
    });
    // New data keep the scroll of the callers, another function begins at its own row.
    const shown = around ? `${this.#options.around}\n${this.#options.file}` : "";
    if (around && shown !== this.#around) this.callers.element.scrollTop = this.callers.element.scrollHeight;
    this.#around = shown;
  }

  #listen(view) {
    const spot = (bar) => ({ name: view.flame.names[view.flame.name[bar]], file: placeOf(view.flame.files[view.flame.name[bar]]) });
    view.addEventListener("hover", ({ detail }) => (detail && view.flame ? this.tooltip.show(detail, view) : this.tooltip.hide()));
    view.addEventListener("mark", ({ detail }) => announce(wordsOf(view.flame, detail)));
    view.addEventListener("menu", ({ detail }) => this.#openMenu(view, detail));
    view.addEventListener("around", ({ detail }) => this.#emit("around", spot(detail)));
    view.addEventListener("copy", ({ detail }) => copyText(spot(detail).name));
    view.addEventListener("search", ({ detail }) => this.#emit("search", spot(detail).name));
  }

  /** What is chosen in the menu becomes an event of the view that it was opened on. */
  #openMenu(view, spot) {
    this.menu.open(spot, view.element, (name, bar) => {
      if (name === "zoom") view.zoomTo(bar);
      else view.dispatchEvent(new CustomEvent(name, { detail: bar }));
    });
  }

  #zoomed(bar) {
    this.#describe(AFTER_MOTION);
    this.#emit("zoom", bar > 0 ? this.view.flame.path[bar] : 0);
  }

  /** All that follows from the graph and its zoom; the table, which costs most, after a while. */
  #describe(pause = 0) {
    const { flame, zoom } = this.view;
    this.#applySearch();
    showCrumbs(this.crumbs, flame, zoom, {
      go: (bar) => this.view.zoomTo(bar),
      around: (bar) => this.view.dispatchEvent(new CustomEvent("around", { detail: bar })),
      copy: (bar) => copyText(flame.names[flame.name[bar]]),
    });
    const source = this.#tableFlame();
    this.#functions = source ? functionsOf(source, source === flame ? zoom : 0) : [];
    showLegend(this.legend, source ? kindsOf(this.#functions, source) : {}, this.palette);
    clearTimeout(this.#timer);
    if (pause) this.#timer = setTimeout(() => this.#fillTable(), pause);
    else this.#fillTable();
  }

  /** Leaf first, what a bar has of its own isn't what its function has: the table keeps to the graph before. */
  #tableFlame() {
    const { flame } = this.view;
    return flame?.leafFirst ? this.#base : flame;
  }

  #fillTable() {
    const flame = this.#tableFlame();
    const { colours } = this.view;
    this.table.setData(flame ? { functions: this.#functions, flame, colours, matches: this.#found?.names ?? null } : null);
  }

  #applySearch() {
    const { flame, zoom } = this.view;
    this.#found = flame ? searchFlame(flame, this.#options.search ?? "", zoom) : null;
    this.view.setMatches(this.#found?.names ?? null);
    this.found.textContent = this.#found ? foundWords(this.#found, flame.total[zoom]) : "";
  }

  #emit(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}

function foundWords({ bars, value }, whole) {
  return bars.length ? `${formatShare(value, whole)} · ${bars.length.toLocaleString("en")}` : "no match";
}

/** A bar for those who listen. */
function wordsOf(flame, bar) {
  const name = flame.name[bar];
  const value = `${formatValue(flame.total[bar], flame.unit)}, ${formatShare(flame.total[bar], flame.whole)}`;
  return `${flame.names[name].slice(0, 200)}, ${value}${flame.files[name] ? `, ${flame.files[name].slice(-100)}` : ""}`;
}
