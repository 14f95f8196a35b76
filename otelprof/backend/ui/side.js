/**
 * One side of a comparison: its service, its selector, and a time line on which its range is dragged.
 *
 * Events: `change` (detail: a patch of {query, from, until}).
 */
import { fillSelect } from "./controls.js";
import { LabelInput } from "./label_input.js";
import { serviceOf, withService } from "./selector.js";
import { Timeline } from "./timeline.js";
import { stepOf } from "./time_axis.js";
import { formatRange, formatSpan, formatValue } from "./units.js";

export class Side extends EventTarget {
  #parts;
  #state = { query: "{}", from: 0, until: 1 };
  #span = { from: 0, until: 1 };

  constructor(element) {
    super();
    const part = (name) => element.querySelector(`[data-part=${name}]`);
    const [service, query, total, range] = ["service", "query", "total", "range"].map(part);
    this.#parts = { service, query, total, range };
    this.timeline = new Timeline(part("timeline"), part("note"));
    new LabelInput(query, () => this.#span);
    this.#listen();
  }

  /** Shows the side's state under the whole span; `services` are those to choose from. */
  show(state, span, services) {
    [this.#state, this.#span] = [state, span];
    const { service, query, range } = this.#parts;
    const own = serviceOf(state.query);
    const names = [...new Set([...services, own].filter(Boolean))].sort();
    fillSelect(service, [{ value: "", text: "All services" }, ...names.map((name) => ({ value: name, text: name }))], own);
    if (document.activeElement !== query) query.value = state.query;
    range.textContent = `${formatRange(state.from, state.until)} · ${formatSpan(state.until - state.from)}`;
    this.timeline.setSelection({ from: state.from, until: state.until });
  }

  /** Shows the values over time and their sum inside of the side's range. */
  setData(points, total, unit) {
    this.timeline.setData(points, this.#span, stepOf(this.#span), unit);
    const seconds = (this.#state.until - this.#state.from) / 1000;
    this.#parts.total.textContent = `${formatValue(total, unit)} · ${formatValue(total / seconds, unit)} a second`;
  }

  #listen() {
    const { service, query } = this.#parts;
    service.addEventListener("change", () => this.#wish({ query: withService(this.#state.query, service.value) }));
    query.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.#wish({ query: query.value.trim() || "{}" });
      if (event.key === "Escape") query.value = this.#state.query;
    });
    this.timeline.addEventListener("select", ({ detail }) => this.#wish(detail ?? this.#span));
  }

  #wish(detail) {
    this.dispatchEvent(new CustomEvent("change", { detail }));
  }
}
