/**
 * Entry of the Compare page: makes the parts, connects them and starts.
 */
import { ChangeTable } from "./change_table.js";
import { Compare } from "./compare.js";
import { listen } from "./flame_input.js";
import { FlameView } from "./flame_view.js";
import { listenMenu } from "./menus.js";
import { currentPalette, listenSearchKey, listenTheme } from "./page_keys.js";
import { Side } from "./side.js";
import { SPANS } from "./state.js";
import { Tooltip } from "./tooltip.js";

const element = (id) => document.getElementById(id);
const all = (selector) => [...document.querySelectorAll(selector)];

function makeParts() {
  const palette = currentPalette();
  const view = (selector) => new FlameView(document.querySelector(selector), palette);
  return {
    palette,
    sides: { left: new Side(element("left")), right: new Side(element("right")) },
    views: { diff: view("[data-testid=flamegraph]"), left: view("#flame-left"), right: view("#flame-right") },
    table: new ChangeTable(element("changes")),
    tooltip: new Tooltip(document.querySelector("[role=tooltip]")),
    status: document.querySelector("[role=status]"),
    choices: { view: all("[data-view]:is(button)"), order: all("[data-order]"), fate: all("[data-fate]:is(button)"), flags: all("[data-flag]") },
    type: element("type"), crumbs: element("crumbs"), folded: element("folded"), search: element("search"), main: element("main"),
    legend: element("legend"), count: element("options-count"),
  };
}

function connect(page) {
  for (const side of ["left", "right"]) {
    page.sides[side].addEventListener("change", ({ detail }) => page.change({ [side]: { ...page.state[side], ...detail } }));
  }
  for (const view of Object.values(page.views)) connectView(page, view);
  page.type.addEventListener("change", () => page.change({ type: page.type.value }));
  page.table.addEventListener("pick", ({ detail }) => page.searchFor(page.search.value === detail ? "" : detail));
  element("swap").addEventListener("click", () => page.swap());
  listenMenu(element("options"));
  connectChoices(page);
  connectSpans(page);
  page.search.addEventListener("input", () => page.change({ search: page.search.value }));
  listenSearchKey(page.search);
  listenTheme((palette) => page.setPalette(palette));
  window.addEventListener("popstate", () => page.restore());
}

function connectView(page, view) {
  listen(view);
  view.addEventListener("hover", ({ detail }) => page.hovered(detail, view));
  view.addEventListener("mark", ({ detail }) => page.marked(detail, view));
  view.addEventListener("zoom", ({ detail }) => page.zoomed(detail, view));
  view.addEventListener("copy", ({ detail }) => page.copy(view, detail));
}

function connectChoices(page) {
  for (const key of ["view", "order"]) {
    for (const button of page.choices[key]) button.addEventListener("click", () => page.change({ [key]: button.dataset[key] }));
  }
  for (const button of page.choices.fate) button.addEventListener("click", () => page.setFate(button.dataset.fate));
  for (const box of page.choices.flags) box.addEventListener("change", () => page.change({ [box.dataset.flag]: box.checked }));
}

function connectSpans(page) {
  for (const [name, span] of Object.entries(SPANS)) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    button.title = `The last ${name}, its first half against its second`;
    button.addEventListener("click", () => page.setSpan(span));
    element("spans").append(button);
  }
}

const page = new Compare(makeParts());
connect(page);
page.start();
