/**
 * The Compare page: two ranges or selectors of one profile type, as a difference, side by side and as a table of changes.
 */
import { backendNow, fetchDiff, fetchSeries, fetchTypes } from "./api.js";
import { announce, copyText } from "./clipboard.js";
import { fillSelect, press } from "./controls.js";
import { formatCompare, parseCompare, withSpan } from "./compare_state.js";
import { showCrumbs, showLegend } from "./crumbs.js";
import { changedFunctions, diffFlames, splitAnswer } from "./flame_diff.js";
import { searchFlame } from "./flame_search.js";
import { foldFlame } from "./flame_shape.js";
import { failure, firstRun, nothingToCompare, showStatus } from "./messages.js";
import { showPages } from "./nav.js";
import { defaultType, groupOf, sortTypes, titleOf, unitOf } from "./profile_types.js";
import { stepOf } from "./time_axis.js";
import { formatPoints, formatShare } from "./units.js";

const SIDES = ["left", "right"];
const IN_PLACE = ["view", "order", "search", "python", "recursion", "flip"];

export class Compare {
  #types = [];
  #abort = new AbortController();
  #answer = null;
  #functions = [];
  #fate = "";

  /** `parts`: {sides: {left, right}, views: {diff, left, right}, table, tooltip, palette, type, status, crumbs, folded, search, main, …}. */
  constructor(parts) {
    Object.assign(this, parts);
    this.state = parseCompare(location.search, backendNow());
  }

  start() {
    this.search.value = this.state.search;
    return this.reload();
  }

  /** A wish: patches the state, writes the address and shows it. */
  change(patch) {
    this.state = { ...this.state, ...patch };
    const keys = Object.keys(patch);
    const write = keys.every((key) => key === "search") ? "replaceState" : "pushState";
    history[write](null, "", `/compare${formatCompare(this.state)}`);
    this.#showState();
    if (!keys.every((key) => IN_PLACE.includes(key))) this.reload();
    else if (keys.includes("search") || keys.includes("order")) this.#mark();
    else this.#draw();
  }

  /** The browser went back or forth. */
  restore() {
    this.state = parseCompare(location.search, backendNow());
    this.search.value = this.state.search;
    this.#showState();
    this.reload();
  }

  /** Another span of time up to now, halved. */
  setSpan(span) {
    const until = backendNow();
    this.change(withSpan(this.state, { from: until - span, until }));
  }

  swap() {
    this.change({ left: this.state.right, right: this.state.left });
  }

  /** Which functions the table lists: `added`, `removed` or all. */
  setFate(fate) {
    this.#fate = fate;
    this.#showState();
    this.#mark();
  }

  searchFor(text) {
    this.search.value = text;
    this.change({ search: text });
  }

  copy(view, bar) {
    copyText(view.flame.names[view.flame.name[bar]]);
  }

  hovered(spot, view) {
    if (spot && view.flame) this.tooltip.show(spot, view);
    else this.tooltip.hide();
  }

  /** The keys' bar, for those who listen. */
  marked(bar, { flame }) {
    const side = flame.change ? `${formatPoints(flame.change[bar])} points` : formatShare(flame.total[bar], flame.whole);
    announce(`${flame.names[flame.name[bar]].slice(0, 200)}, ${side}`);
  }

  setPalette(palette) {
    this.palette = palette;
    for (const view of Object.values(this.views)) view.setPalette(palette);
    for (const side of SIDES) this.sides[side].timeline.paint();
    this.#showLegend();
    if (this.#answer) this.#mark();
  }

  async reload() {
    this.#abort.abort();
    const { signal } = (this.#abort = new AbortController());
    this.views.diff.setState("loading");
    try {
      await this.#loadTypes(signal);
      if (this.state.type) await this.#loadData(signal);
      else this.#showEmpty(firstRun());
    } catch (error) {
      if (signal.aborted) return;
      this.#showEmpty(failure(error, () => this.reload()), "error");
    }
  }

  async #loadTypes(signal) {
    this.#types = await fetchTypes(signal);
    if (!this.state.type && this.#types.length) {
      this.state = { ...this.state, type: defaultType(this.#types.map(({ id }) => id)) };
      history.replaceState(null, "", `/compare${formatCompare(this.state)}`);
    }
    this.#showState();
  }

  async #loadData(signal) {
    const { type, span, left, right } = this.state;
    const series = ({ query }) => fetchSeries({ type, query, ...span, step: stepOf(span) }, signal);
    const [answer, ...points] = await Promise.all([fetchDiff({ type, left, right }, signal), series(left), series(right)]);
    this.#answer = { ...splitAnswer(answer), folded: Number(answer.other) || 0 };
    SIDES.forEach((side, i) => this.sides[side].setData(points[i], this.#answer[side].whole, unitOf(type)));
    if (this.#answer.left.whole || this.#answer.right.whole) this.#draw();
    else this.#showEmpty(nothingToCompare());
  }

  /** Draws what is loaded, in the shape that is asked for. */
  #draw() {
    if (!this.#answer) return;
    const [left, right] = SIDES.map((side) => foldFlame(this.#answer[side], this.state));
    this.#functions = changedFunctions(left, right);
    const flames = { diff: diffFlames(left, right), left, right };
    for (const [name, view] of Object.entries(this.views)) {
      view.flipped = this.state.flip;
      if (flames[name].count) view.setFlame(flames[name]);
      else view.clear();
    }
    showStatus(this.status);
    this.#mark();
    this.views.diff.setState("ready");
  }

  #showEmpty(lines, state = "empty") {
    this.#answer = null;
    this.#functions = [];
    for (const view of Object.values(this.views)) view.clear();
    showStatus(this.status, lines);
    this.#mark();
    this.views.diff.setState(state);
  }

  /** All that follows from graphs, zoom and search. */
  #mark() {
    for (const view of Object.values(this.views)) {
      view.setMatches(view.flame ? searchFlame(view.flame, this.state.search)?.names ?? null : null);
    }
    const { order, search } = this.state;
    this.table.show(this.#functions, { order, fate: this.#fate, text: search, palette: this.palette });
    this.showPath();
    this.#showLegend();
    this.folded.textContent = this.#foldedWords();
  }

  /** The path to the zoom of the view that is shown. */
  showPath() {
    const view = this.views[this.state.view === "sides" ? "left" : "diff"];
    showCrumbs(this.crumbs, view.flame, view.zoom, { go: (bar) => view.zoomTo(bar), copy: (bar) => this.copy(view, bar) });
  }

  /** Side by side, a zoom on one side goes to the same path on the other. */
  zoomed(bar, view) {
    const { left, right } = this.views;
    if (view === left) follow(right, left, bar);
    if (view === right) follow(left, right, bar);
    this.showPath();
  }

  #foldedWords() {
    const whole = (this.#answer?.left.whole ?? 0) + (this.#answer?.right.whole ?? 0);
    return this.#answer?.folded ? `${formatShare(this.#answer.folded, whole)} of both sides is folded into other` : "";
  }

  #showState() {
    const { type, span, view, order } = this.state;
    const ids = sortTypes(new Set([...this.#types.map(({ id }) => id), type].filter(Boolean)));
    fillSelect(this.type, ids.length ? ids.map((id) => ({ value: id, text: titleOf(id), group: groupOf(id) })) : [{ value: "", text: "None yet" }], type);
    const services = this.#types.flatMap((entry) => entry.services ?? []);
    for (const side of SIDES) this.sides[side].show(this.state[side], span, services);
    this.main.dataset.view = view;
    this.showChoices({ view, order, fate: this.#fate, ...this.state });
    document.title = `Compare ${titleOf(type)} · otelprof`;
    showPages({ type, query: this.state.right.query, from: Math.round(span.from), until: Math.round(span.until) });
  }

  #showLegend() {
    if (this.state.view === "sides") {
      showLegend(this.legend, Object.fromEntries(this.#functions.map(({ kind }) => [kind || "other", 0])), this.palette);
      return;
    }
    const { less, more } = this.palette.changes;
    this.legend.replaceChildren(item("smaller share"), ramp([...[...less].reverse(), ...more]), item("larger share"));
  }

  /** Marks the choices that hold: the buttons and boxes around the graph. */
  showChoices(state) {
    for (const key of ["view", "order", "fate"]) {
      for (const button of this.choices[key]) press(button, button.dataset[key] === state[key]);
    }
    for (const box of this.choices.flags) box.checked = state[box.dataset.flag];
    const count = this.choices.flags.filter((box) => box.checked).length;
    this.count.hidden = !count;
    this.count.textContent = count;
  }
}

function follow(other, view, bar) {
  const path = bar > 0 ? view.flame.path[bar] : 0;
  const same = other.flame ? Math.max(0, other.flame.path.indexOf(path)) : 0;
  if (other.flame && other.zoom !== same) other.zoomTo(same);
}

function item(words) {
  const element = document.createElement("li");
  element.textContent = words;
  return element;
}

function ramp(colours) {
  const element = document.createElement("li");
  const strip = document.createElement("i");
  strip.className = "ramp";
  strip.style.background = `linear-gradient(to right, ${colours.join(", ")})`;
  element.append(strip);
  return element;
}
