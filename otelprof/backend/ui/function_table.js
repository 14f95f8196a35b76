/**
 * The table of functions beside the flame graph: self and total, sorted by either; a click marks the function in the graph.
 *
 * Events: `pick` (detail: a name), `around` (detail: {name, file}: its callers and callees are wished).
 */
import { placeOf } from "./flame_data.js";
import { sortFunctions } from "./functions.js";
import { formatShare, formatValue } from "./units.js";

const MOST_ROWS = 250;

export class FunctionTable extends EventTarget {
  #body;
  #more;
  #data = null;
  #sort = "self";

  constructor(element) {
    super();
    this.#body = element.querySelector("tbody");
    this.#more = element.querySelector(".table-more");
    for (const button of element.querySelectorAll("button[data-sort]")) {
      button.addEventListener("click", () => this.#sortBy(button.dataset.sort, element));
    }
    this.#body.addEventListener("click", (event) => this.#pick(event.target));
  }

  /** `data` is {functions, flame, colours, matches}; null empties the table. */
  setData(data) {
    this.#data = data;
    this.#fill();
  }

  #sortBy(key, element) {
    this.#sort = key;
    for (const head of element.querySelectorAll("th[data-key]")) {
      head.setAttribute("aria-sort", head.dataset.key === key ? "descending" : "none");
    }
    this.#fill();
  }

  #fill() {
    const rows = this.#data ? this.#rows() : [];
    const shown = rows.slice(0, MOST_ROWS);
    while (this.#body.rows.length > shown.length) this.#body.deleteRow(-1);
    while (this.#body.rows.length < shown.length) this.#body.append(emptyRow());
    shown.forEach((entry, i) => fillRow(this.#body.rows[i], entry, this.#data, this.#part(entry)));
    this.#more.textContent = this.#words(rows.length);
  }

  #words(rows) {
    if (rows > MOST_ROWS) return `and ${(rows - MOST_ROWS).toLocaleString("en")} more: search for them`;
    return this.#data && !rows ? "no functions below this one" : "";
  }

  /** Length of a row's bar in percent. */
  #part(entry) {
    const { whole } = this.#data.flame;
    return whole > 0 ? Math.min(100, (100 * entry[this.#sort]) / whole) : 0;
  }

  #rows() {
    const { functions, flame, matches } = this.#data;
    const wanted = matches ? functions.filter(({ name }) => matches[name]) : functions;
    return sortFunctions(wanted, this.#sort, flame.names);
  }

  #pick(target) {
    const { name, file } = target.closest("tr")?.dataset ?? {};
    if (name === undefined || !target.closest("button")) return;
    const around = target.closest(".row-around");
    this.dispatchEvent(around ? new CustomEvent("around", { detail: { name, file } }) : new CustomEvent("pick", { detail: name }));
  }
}

function emptyRow() {
  const row = document.createElement("tr");
  const button = document.createElement("button");
  button.type = "button";
  button.append(...["i", "span", "small"].map((tag) => document.createElement(tag)));
  button.firstChild.className = "swatch";
  row.insertCell().append(button, aroundButton());
  for (const key of ["self", "total"]) {
    const cell = row.insertCell();
    cell.className = key;
    cell.append(document.createElement("b"), document.createElement("small"));
  }
  return row;
}

function aroundButton() {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "row-around";
  button.title = "Callers and callees";
  button.textContent = "⇅";
  return button;
}

function fillRow(row, { name, self, total }, { flame, colours }, part) {
  const button = row.cells[0].firstChild;
  row.dataset.name = flame.names[name];
  row.dataset.file = placeOf(flame.files[name]);
  row.cells[0].lastChild.setAttribute("aria-label", `Callers and callees of ${flame.names[name].slice(0, 200)}`);
  button.title = [flame.names[name], flame.files[name]].filter(Boolean).join("\n").slice(0, 1000);
  button.firstChild.style.background = colours[name];
  button.children[1].textContent = flame.names[name].slice(0, 300) || "[unnamed]";
  button.lastChild.textContent = (flame.files[name] ?? "").split("/").at(-1).slice(-80);
  row.style.setProperty("--kind", colours[name]);
  row.style.setProperty("--part", `${part}%`);
  fillValue(row.cells[1], self, flame);
  fillValue(row.cells[2], total, flame);
}

function fillValue(cell, value, flame) {
  cell.firstChild.textContent = formatShare(value, flame.whole);
  cell.lastChild.textContent = formatValue(value, flame.unit);
}
