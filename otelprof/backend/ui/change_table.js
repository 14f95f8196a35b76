/**
 * The table of functions whose share changed between two sides, those that changed most first.
 *
 * Events: `pick` (detail: a name).
 */
import { fateOf, sortChanges } from "./flame_diff.js";
import { changeColour } from "./palette.js";
import { formatPoints, formatShare } from "./units.js";

const MOST_ROWS = 250;
const WORDS = { added: "added", removed: "removed", "": "" };

export class ChangeTable extends EventTarget {
  #body;
  #more;

  constructor(element) {
    super();
    this.#body = element.querySelector("tbody");
    this.#more = element.querySelector(".table-more");
    this.#body.addEventListener("click", ({ target }) => {
      const row = target.closest("button") && target.closest("tr");
      if (row) this.dispatchEvent(new CustomEvent("pick", { detail: row.dataset.name }));
    });
  }

  /** `functions` as `changedFunctions` gives them; `order` is self or total, `fate` which ones ("" for all), `text` what they hold. */
  show(functions, { order, fate, text, palette }) {
    const wanted = text.trim().toLowerCase();
    const fits = ({ name, file }) => !wanted || `${name}\n${file}`.toLowerCase().includes(wanted);
    const rows = sortChanges(functions.filter((entry) => fits(entry) && (!fate || fateOf(entry) === fate)), order);
    const shown = rows.slice(0, MOST_ROWS);
    while (this.#body.rows.length > shown.length) this.#body.deleteRow(-1);
    while (this.#body.rows.length < shown.length) this.#body.append(emptyRow());
    shown.forEach((entry, i) => fillRow(this.#body.rows[i], entry, order, palette));
    this.#more.textContent = moreWords(rows.length, fate);
  }
}

function moreWords(rows, fate) {
  if (rows > MOST_ROWS) return `and ${(rows - MOST_ROWS).toLocaleString("en")} more: search for them`;
  return rows ? "" : `no ${fate ? `${fate} ` : ""}functions`;
}

function emptyRow() {
  const row = document.createElement("tr");
  const button = document.createElement("button");
  button.type = "button";
  button.append(...["i", "span", "b", "small"].map((tag) => document.createElement(tag)));
  button.children[0].className = "swatch";
  button.children[2].className = "fate";
  row.insertCell().append(button);
  for (const name of ["left", "right-value", "change"]) row.insertCell().className = name;
  return row;
}

function fillRow(row, entry, order, palette) {
  const [left, right] = [entry.left[order], entry.right[order]];
  const button = row.cells[0].firstChild;
  row.dataset.name = entry.name;
  row.dataset.fate = fateOf(entry);
  row.dataset.way = formatPoints(right - left) === "0" ? "" : right > left ? "more" : "less";
  button.title = [entry.name, entry.file].filter(Boolean).join("\n").slice(0, 1000);
  button.children[0].style.background = changeColour(palette, right - left);
  button.children[1].textContent = entry.name.slice(0, 300) || "[unnamed]";
  button.children[2].textContent = WORDS[fateOf(entry)];
  button.children[3].textContent = entry.file.split("/").at(-1).slice(-80);
  row.cells[1].textContent = formatShare(left, 1);
  row.cells[2].textContent = formatShare(right, 1);
  row.cells[3].textContent = formatPoints(right - left);
}
