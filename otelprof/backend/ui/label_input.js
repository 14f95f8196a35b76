/**
 * Completion for the label selector: names and values that the backend knows, in a list under the field (a combobox as in
 * ARIA's pattern: the focus stays in the field, arrows move in the list, Enter or Tab takes, Escape closes).
 */
import { fetchLabelNames, fetchLabelValues } from "./api.js";
import { complete, completionAt } from "./selector.js";

const MOST = 50;
const FRESH = 30_000;

export class LabelInput {
  #input;
  #list = document.createElement("ul");
  #range;
  #known = new Map();
  #at = null;
  #marked = -1;

  /** `input` is the field, `range()` says {from, until} of what is asked for. */
  constructor(input, range) {
    this.#input = input;
    this.#range = range;
    this.#list.className = "menu-list suggestions";
    this.#list.id = `${input.id}-list`;
    this.#list.setAttribute("role", "listbox");
    this.#list.hidden = true;
    input.after(this.#list);
    for (const [name, value] of [["role", "combobox"], ["aria-controls", this.#list.id], ["aria-expanded", "false"], ["aria-autocomplete", "list"]]) {
      input.setAttribute(name, value);
    }
    this.#listen();
  }

  #listen() {
    for (const name of ["input", "click", "focus"]) this.#input.addEventListener(name, () => this.#suggest());
    this.#input.addEventListener("blur", () => this.#show([]));
    // Before the field's own keys: Enter takes a suggestion that is marked, and applies the selector otherwise.
    this.#input.addEventListener("keydown", (event) => this.#key(event), true);
    this.#list.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      const item = event.target.closest("li");
      if (item) this.#take(item.textContent);
    });
  }

  async #suggest() {
    const at = completionAt(this.#input.value, this.#input.selectionStart);
    this.#at = at;
    const all = at ? await this.#values(at.kind === "value" ? at.label : "") : [];
    if (at !== this.#at || document.activeElement !== this.#input) return;
    const typed = at?.typed.toLowerCase() ?? "";
    const fitting = all.filter((one) => one.toLowerCase().includes(typed));
    this.#show(fitting.sort((a, b) => rank(a, typed) - rank(b, typed)).slice(0, MOST));
  }

  /** Label names, or the values of one; asked for again after a while. */
  #values(label) {
    const known = this.#known.get(label);
    if (known && performance.now() - known.at < FRESH) return known.values;
    const range = this.#range();
    const values = (label ? fetchLabelValues(label, range) : fetchLabelNames(range)).catch(() => []);
    this.#known.set(label, { at: performance.now(), values });
    return values;
  }

  #show(choices) {
    this.#marked = -1;
    this.#list.replaceChildren(...choices.map((choice, i) => {
      const item = document.createElement("li");
      item.id = `${this.#list.id}-${i}`;
      item.setAttribute("role", "option");
      item.textContent = choice;
      return item;
    }));
    this.#list.hidden = choices.length === 0;
    this.#input.setAttribute("aria-expanded", String(choices.length > 0));
    this.#input.removeAttribute("aria-activedescendant");
  }

  #key(event) {
    const items = this.#list.children;
    if (this.#list.hidden || !items.length) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const takes = (event.key === "Enter" || event.key === "Tab") && this.#marked >= 0;
    if (step) this.#mark((this.#marked + step + items.length) % items.length);
    else if (takes) this.#take(items[this.#marked].textContent);
    else if (event.key === "Escape") this.#show([]);
    else return;
    event.preventDefault();
    event.stopImmediatePropagation();
  }

  #mark(index) {
    this.#list.children[this.#marked]?.removeAttribute("aria-selected");
    this.#marked = index;
    const item = this.#list.children[index];
    item.setAttribute("aria-selected", "true");
    item.scrollIntoView({ block: "nearest" });
    this.#input.setAttribute("aria-activedescendant", item.id);
  }

  #take(choice) {
    const { text, caret } = complete(this.#input.value, this.#input.selectionStart, this.#at, choice);
    this.#input.value = text;
    this.#input.setSelectionRange(caret, caret);
    this.#show([]);
    if (this.#at.kind === "name") this.#suggest();
  }
}

/** What begins with the typed text stands before what only holds it. */
const rank = (text, typed) => (text.toLowerCase().startsWith(typed) ? 0 : 1);
