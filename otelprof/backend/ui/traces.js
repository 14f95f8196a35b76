/**
 * The Traces page: requests by what they cost, and one request's spans with what each cost by itself.
 */
import { backendNow, fetchSpans, fetchTraces, fetchTypes } from "./api.js";
import { fillSelect, press } from "./controls.js";
import { COSTS, costCells } from "./cost_cells.js";
import { failure, showStatus, withoutRequests } from "./messages.js";
import { showPages } from "./nav.js";
import { serviceOf, withService } from "./selector.js";
import { extentOf, treeOf } from "./span_tree.js";
import { formatState, live, parseState, windowRange } from "./state.js";
import { formatClock, formatTime, formatValue } from "./units.js";

const ORDERS = [...COSTS.map(({ order }) => order), "duration"];
const INDENT = 14;
const DEEPEST = 20;
/** Samples of a span are stamped when they are reported: seconds that a link to its flame graph looks around it. */
const AROUND = 15_000;

export class Traces {
  #types = [];
  #abort = new AbortController();

  /** `parts`: {status, rows, spans, detail, head, service, query, ranges, orders, main}. */
  constructor(parts) {
    Object.assign(this, parts);
    this.#read();
  }

  /** A wish: patches the state, writes the address and loads. */
  change(patch) {
    this.state = { ...this.state, ...patch };
    history.pushState(null, "", `/traces${this.#search()}`);
    this.reload();
  }

  restore() {
    this.#read();
    this.reload();
  }

  setService(service) {
    this.change({ query: withService(this.state.query, service), trace: "" });
  }

  setSpan(span) {
    this.change({ window: live(span) });
  }

  async reload() {
    this.#abort.abort();
    const { signal } = (this.#abort = new AbortController());
    this.main.dataset.state = "loading";
    try {
      await this.#load(signal);
    } catch (error) {
      if (signal.aborted) return;
      showStatus(this.status, failure(error, () => this.reload()));
      this.main.dataset.state = "error";
    }
  }

  #read() {
    const order = new URLSearchParams(location.search).get("order");
    this.state = { ...parseState(location.search), order: ORDERS.includes(order) ? order : ORDERS[0] };
  }

  #search() {
    const params = new URLSearchParams(formatState({ ...this.state, type: "", search: "", zoom: 0, span: "" }));
    params.delete("type");
    if (this.state.order !== ORDERS[0]) params.set("order", this.state.order);
    return `?${params}`;
  }

  async #load(signal) {
    const { query, order, trace } = this.state;
    const range = windowRange(this.state, backendNow());
    this.#types = await fetchTypes(signal);
    this.#showState();
    const [traces, spans] = await Promise.all([
      fetchTraces({ query, order, ...range }, signal), trace ? fetchSpans(trace, signal) : [],
    ]);
    this.rows.replaceChildren(...traces.map((request) => this.#requestRow(request, range)));
    this.#showSpans(spans, range);
    showStatus(this.status, traces.length || spans.length ? [] : withoutRequests());
    this.main.dataset.state = traces.length ? "ready" : "empty";
  }

  #showState() {
    const { query, window, order } = this.state;
    const own = serviceOf(query);
    const services = [...new Set([...this.#types.flatMap((type) => type.services ?? []), own].filter(Boolean))].sort();
    fillSelect(this.service, [{ value: "", text: "All services" }, ...services.map((name) => ({ value: name, text: name }))], own);
    if (document.activeElement !== this.query) this.query.value = query;
    for (const button of this.ranges.children) press(button, window.live && Number(button.dataset.span) === window.span);
    for (const button of this.orders) {
      button.closest("th").setAttribute("aria-sort", button.dataset.order === order ? "descending" : "none");
    }
    const { from, until } = Object.fromEntries(new URLSearchParams(formatState(this.state)));
    showPages({ query, from, until });
  }

  #requestRow(request, range) {
    const row = document.createElement("tr");
    row.dataset.trace = request.trace;
    if (request.trace === this.state.trace) row.setAttribute("aria-current", "true");
    const button = nameButton(request.name || `request ${request.trace.slice(0, 8)}`, request.service);
    button.addEventListener("click", () => this.change({ trace: request.trace === this.state.trace ? "" : request.trace }));
    row.insertCell().append(button);
    row.insertCell().textContent = request.start_us ? formatClock(request.start_us / 1000) : "–";
    row.insertCell().textContent = request.duration_ns ? formatValue(request.duration_ns, "nanoseconds") : "–";
    row.append(...costCells(request, (cost) => this.#flameUrl(cost, { trace: request.trace }, request, range)));
    return row;
  }

  #showSpans(spans, range) {
    const { trace } = this.state;
    this.detail.hidden = !trace;
    if (!trace) return;
    const extent = extentOf(spans);
    this.head.textContent = extent ? `${formatTime(extent.from / 1000)} · ${formatValue((extent.until - extent.from) * 1000, "nanoseconds")}` : "";
    this.title.textContent = `Request ${trace}`;
    this.spans.replaceChildren(...treeOf(spans).map((row) => this.#spanRow(row, { extent, range })));
  }

  #spanRow({ span, depth }, { extent, range }) {
    const row = document.createElement("tr");
    row.dataset.span = span.span;
    const name = row.insertCell();
    name.style.paddingLeft = `${16 + Math.min(depth, DEEPEST) * INDENT}px`;
    name.append(text("span", span.name || `span ${span.span.slice(0, 8)}`), " ", text("small", span.service));
    row.insertCell().append(bar(span, extent), text("small", span.duration_ns ? formatValue(span.duration_ns, "nanoseconds") : ""));
    row.append(...costCells(span, (cost) => this.#flameUrl(cost, { trace: this.state.trace, span: span.span }, span, range)));
    return row;
  }

  /** Address of the flame graph of a cost, around the time of what it belongs to. */
  #flameUrl(cost, link, { start_us: start, duration_ns: length, service }, range) {
    const type = this.#types.find(({ id }) => id.startsWith(cost.type))?.id;
    if (!type) return "";
    const own = start > 0 ? { from: start / 1000 - AROUND, until: (start + length / 1000) / 1000 + AROUND } : range;
    const query = service ? withService("{}", service) : this.state.query;
    return `/explore?${new URLSearchParams({ type, query, from: Math.floor(own.from), until: Math.ceil(own.until), ...link })}`;
  }
}

function nameButton(name, service) {
  const button = document.createElement("button");
  button.type = "button";
  button.append(text("span", name.slice(0, 300)), text("small", service.slice(0, 100)));
  return button;
}

/** Where a span lies in its request. */
function bar({ start_us: start, duration_ns: length }, extent) {
  const track = text("i", "");
  track.className = "track";
  if (!extent || !start) return track;
  const part = text("i", "");
  const whole = extent.until - extent.from;
  part.style.left = `${(100 * (start - extent.from)) / whole}%`;
  part.style.width = `${Math.max(0.5, length / 10 / whole)}%`;
  track.append(part);
  return track;
}

function text(tag, words) {
  const element = document.createElement(tag);
  element.textContent = words;
  return element;
}
