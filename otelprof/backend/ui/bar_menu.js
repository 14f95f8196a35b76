/**
 * The menu of one bar: zoom, callers and callees, copy, search.  Opened by a right click or the menu key.
 */

const ENTRIES = [
  ["zoom", "Zoom to this bar", "Enter"],
  ["around", "Callers and callees", "s"],
  ["copy", "Copy name", "c"],
  ["search", "Search for this name", ""],
];

export class BarMenu {
  #element = document.createElement("div");
  #bar = 0;
  #back = null;
  #choose = null;

  constructor() {
    this.#element.className = "menu-list bar-menu";
    this.#element.setAttribute("role", "menu");
    this.#element.hidden = true;
    this.#element.append(...ENTRIES.map((entry) => this.#button(entry)));
    this.#element.addEventListener("keydown", (event) => this.#key(event));
    document.addEventListener("pointerdown", (event) => { if (!this.#element.contains(event.target)) this.#close(false); });
    document.body.append(this.#element);
  }

  /** Opens at a point for a bar; `choose(name, bar)` is told the choice, and focus goes back to `back`. */
  open({ bar, x, y }, back, choose) {
    [this.#bar, this.#back, this.#choose] = [bar, back, choose];
    this.#element.hidden = false;
    const { offsetWidth, offsetHeight } = this.#element;
    this.#element.style.left = `${Math.max(8, Math.min(x, innerWidth - offsetWidth - 8))}px`;
    this.#element.style.top = `${Math.max(8, Math.min(y, innerHeight - offsetHeight - 8))}px`;
    this.#element.firstChild.focus();
  }

  #button([name, words, key]) {
    const button = document.createElement("button");
    button.type = "button";
    button.setAttribute("role", "menuitem");
    const hint = document.createElement("small");
    hint.textContent = key;
    button.append(words, hint);
    button.addEventListener("click", () => {
      this.#close(true);
      this.#choose(name, this.#bar);
    });
    return button;
  }

  #key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      const items = [...this.#element.children];
      items[(items.indexOf(document.activeElement) + step + items.length) % items.length].focus();
    } else if (event.key === "Escape" || event.key === "Tab") this.#close(true);
    else return;
    event.preventDefault();
  }

  #close(focus) {
    if (this.#element.hidden) return;
    this.#element.hidden = true;
    if (focus) this.#back?.focus({ preventScroll: true });
  }
}
