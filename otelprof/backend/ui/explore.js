/**
 * The Explore page: holds the state, fetches what it asks for and hands that to the parts.
 *
 * A person's wish changes the state and the address and loads anew (`loading`, then `ready`, `empty` or `error`); news from the
 * backend refresh in place, so that zoom, search, scroll and an open picker stay.
 */
import { backendNow, fetchFlame, fetchSeries, fetchTypes } from "./api.js";
import { showControls, showFeed, windowOf } from "./controls.js";
import { showExports } from "./exports.js";
import { buildFlame } from "./flame_data.js";
import { Pace } from "./live.js";
import { emptyRange, failure, firstRun, missingFunction, showStatus } from "./messages.js";
import { showPages } from "./nav.js";
import { defaultType, titleOf, unitOf } from "./profile_types.js";
import { serviceOf } from "./selector.js";
import { FLAGS, fixed, formatState, isOpen, live, parseState, shownRange, windowRange } from "./state.js";
import { showSpanNote } from "./span_note.js";
import { stepOf } from "./time_axis.js";
import { formatRange, formatSpan } from "./units.js";

const LEAST_GAP = 1000;
const TYPES_EVERY = 10_000;
/** Wishes that the loaded graph can fulfil; those of SHAPE make another graph of it. */
const SHAPE = [...FLAGS, "around", "file"];
const IN_PLACE = ["search", "zoom", "pane", ...SHAPE];

export class Explore {
  #types = [];
  #typesAt = -Infinity;
  #abort = new AbortController();
  #feedStatus = "lost";
  #paused = false;
  #wished = true;

  /** `parts`: {graph, view (its main one), timeline, feed, search, status, title, range, only}. */
  constructor(parts) {
    Object.assign(this, parts);
    this.state = parseState(location.search);
    this.pace = new Pace(() => this.#load(), LEAST_GAP);
  }

  start() {
    this.search.value = this.state.search;
    this.feed.start();
    return this.reload();
  }

  /** A wish: patches the state, writes the address and shows it. */
  change(patch) {
    this.state = { ...this.state, ...patch };
    const inPlace = Object.keys(patch).every((key) => IN_PLACE.includes(key));
    const write = Object.keys(patch).every((key) => key === "search" || key === "pane") ? "replaceState" : "pushState";
    history[write](null, "", `/explore${formatState(this.state)}`);
    this.#showState();
    if (!inPlace) this.reload();
    else if (Object.keys(patch).some((key) => SHAPE.includes(key))) this.#reshape();
  }

  /** The browser went back or forth. */
  restore() {
    this.state = parseState(location.search);
    this.search.value = this.state.search;
    this.#showState();
    this.reload();
  }

  reload() {
    this.view.setState("loading");
    this.#wished = true;
    return this.#load();
  }

  /** Something was stored: what is shown may be out of date. */
  news() {
    if (!this.#paused && !document.hidden && isOpen(this.state, backendNow() - LEAST_GAP)) this.pace.wish();
  }

  /** Time passes: a live window moves on although nothing arrives. */
  tick() {
    if (this.state.window.live) this.news();
  }

  /** A page that nobody sees holds no connection: browsers grant six to one host. */
  seen(visible) {
    if (!visible) this.feed.stop();
    else if (!this.#paused) {
      this.feed.start();
      this.news();
    }
  }

  feedChanged(status) {
    this.#feedStatus = status;
    this.#showFeed();
  }

  toggleLive() {
    if (!isOpen(this.state, backendNow())) {
      this.#paused = false;
      this.change({ window: live(this.#liveSpan()), selection: null });
      return;
    }
    this.#paused = !this.#paused;
    if (this.#paused) this.feed.stop();
    else this.feed.start();
    this.#showFeed();
    this.news();
  }

  select(selection) {
    this.change({ selection });
  }

  widen(selection) {
    this.change({ window: windowOf(selection), selection: null });
  }

  zoomed(path) {
    this.change({ zoom: path });
  }

  searchFor(text) {
    this.search.value = text;
    this.change({ search: text });
    this.graph.search(text);
  }

  /** Callers and callees of a function, or with an empty name all again. */
  around({ name, file }) {
    this.change({ around: name, file, zoom: 0 });
    this.view.element.focus({ preventScroll: true });
  }

  setPalette(palette) {
    this.graph.setPalette(palette);
    this.timeline.paint();
  }

  /** A message over the graph until the next answer. */
  say(error) {
    showStatus(this.status, failure(error, () => this.reload(), true), true);
  }

  /** What stands on top of an exported picture. */
  get words() {
    const { from, until } = shownRange(this.state, backendNow());
    const around = this.state.around ? ` · ${this.state.around}` : "";
    return { title: `${titleOf(this.state.type)}${this.#service()}${around}`, subtitle: formatRange(from, until) };
  }

  #reshape() {
    if (this.graph.shown) this.#showGraph(() => this.graph.reshape(this.state));
  }

  async #load() {
    this.#abort.abort();
    const { signal } = (this.#abort = new AbortController());
    try {
      await this.#loadTypes(signal);
      if (this.state.type) await this.#loadData(signal);
      else this.#showEmpty(0, 0);
    } catch (error) {
      if (!signal.aborted) this.#fail(error);
    }
  }

  /** Types are asked for at first, now and then, and when there was nothing to show. */
  async #loadTypes(signal) {
    const fresh = performance.now() - this.#typesAt < TYPES_EVERY && this.view.element.dataset.state !== "empty";
    if (fresh && this.state.type) return;
    this.#types = await fetchTypes(signal);
    this.#typesAt = performance.now();
    if (!this.state.type && this.#types.length) {
      this.state = { ...this.state, type: defaultType(this.#typesOfService()) };
      history.replaceState(null, "", `/explore${formatState(this.state)}`);
    }
    this.#showState();
  }

  /** Ids of the types that the chosen service has, of all when it has none. */
  #typesOfService() {
    const service = serviceOf(this.state.query);
    const own = this.#types.filter(({ services }) => !service || (services ?? []).includes(service));
    return (own.length ? own : this.#types).map(({ id }) => id);
  }

  async #loadData(signal) {
    const { type, query, span, trace } = this.state;
    const whole = windowRange(this.state, backendNow());
    const shown = shownRange(this.state, backendNow());
    const step = stepOf(whole);
    const [answer, points] = await Promise.all([
      fetchFlame({ type, query, span, trace, ...shown }, signal),
      fetchSeries({ type, query, ...whole, step }, signal),
    ]);
    this.timeline.setData(points, whole, step, unitOf(type));
    this.timeline.setSelection(this.state.selection);
    this.#showRange(shown);
    if (answer.total > 0 && answer.levels?.length) this.#showFlame(buildFlame(answer));
    else await this.#explainEmpty(shown, signal);
  }

  async #explainEmpty({ from, until }, signal) {
    this.#types = await fetchTypes(signal);
    this.#showState();
    this.#showEmpty(from, until);
  }

  #showFlame(flame) {
    this.#wished = false;
    this.#showGraph(() => this.graph.show(flame, this.state));
    this.view.setState("ready");
  }

  /** Draws by `draw`, and says it when the function that is asked for isn't there. */
  #showGraph(draw) {
    const missing = !draw() && this.state.around;
    showStatus(this.status, missing ? missingFunction(this.state.around, () => this.around({ name: "", file: "" })) : [], missing);
  }

  #showEmpty(from, until) {
    this.graph.clear();
    this.timeline.setSelection(this.state.selection);
    if (!this.#types.length) showStatus(this.status, firstRun());
    else {
      const facts = { from, until, type: this.state.type, types: this.#types, service: serviceOf(this.state.query) };
      showStatus(this.status, emptyRange(facts, (entry) => this.#jump(entry)));
    }
    this.view.setState("empty");
  }

  /** To the last data of a type, in a window as long as the one that is shown. */
  #jump({ id, last, services }) {
    const { from, until } = shownRange(this.state, backendNow());
    const window = last > backendNow() - (until - from) ? live(this.#liveSpan()) : fixed(last - (until - from) * 0.9, last + (until - from) * 0.1);
    const service = serviceOf(this.state.query);
    const query = !service || (services ?? []).includes(service) ? this.state.query : "{}";
    this.change({ type: id, query, window: roundWindow(window), selection: null });
  }

  /** A graph that only got no news stays under the message; one that was left by a wish goes. */
  #fail(error) {
    const over = !this.#wished && this.graph.shown;
    if (!over) this.graph.clear();
    showStatus(this.status, failure(error, () => this.reload(), over), over);
    this.view.setState("error");
  }

  #showState() {
    showControls(this.state, this.#types);
    this.title.textContent = titleOf(this.state.type) || "Profile";
    document.title = `${titleOf(this.state.type) || "Explore"}${this.#service()} · otelprof`;
    this.#showFeed();
    this.#showExports();
    showSpanNote(this.only, this.state, () => this.change({ span: "", trace: "" }));
    const { type, query, from, until } = Object.fromEntries(new URLSearchParams(formatState(this.state)));
    showPages({ type, query, from, until });
  }

  #service() {
    const service = serviceOf(this.state.query);
    return service ? ` · ${service}` : "";
  }

  #showFeed() {
    const open = isOpen(this.state, backendNow());
    showFeed(!open ? "off" : this.#paused ? "paused" : this.#feedStatus);
  }

  #showRange({ from, until }) {
    this.range.textContent = `${formatRange(from, until)} · ${formatSpan(until - from)}`;
    this.#showExports();
  }

  #showExports() {
    const { type, query, span, trace } = this.state;
    showExports({ type, query, span, trace, ...shownRange(this.state, backendNow()) });
  }

  #liveSpan() {
    if (this.state.window.live) return this.state.window.span;
    const span = this.state.window.until - this.state.window.from;
    return Math.max(60e3, Math.ceil(span / 60e3) * 60e3);
  }
}

function roundWindow(window) {
  return window.live ? window : fixed(Math.floor(window.from), Math.ceil(window.until));
}
