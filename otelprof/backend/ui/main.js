/**
 * Entry of the page: makes the parts, connects them and starts.
 */
import { listenControls } from "./controls.js";
import { Explore } from "./explore.js";
import { listenExports } from "./exports.js";
import { listen } from "./flame_input.js";
import { FlameView } from "./flame_view.js";
import { FunctionTable } from "./function_table.js";
import { LiveFeed } from "./live.js";
import { readPalette } from "./palette.js";
import { Timeline } from "./timeline.js";
import { Tooltip } from "./tooltip.js";

const TICK = 5000;
const element = (id) => document.getElementById(id);
const currentPalette = () => readPalette(getComputedStyle(document.documentElement));

function makeParts() {
  const palette = currentPalette();
  return {
    palette,
    view: new FlameView(document.querySelector("[data-testid=flamegraph]"), palette),
    timeline: new Timeline(element("timeline"), element("time-note")),
    tooltip: new Tooltip(document.querySelector("[role=tooltip]")),
    table: new FunctionTable(element("functions")),
    feed: new LiveFeed(),
    status: document.querySelector("[role=status]"),
    search: element("search"), found: element("found"), crumbs: element("crumbs"), legend: element("legend"),
    title: element("title"), range: element("range"),
  };
}

function connect(page) {
  listen(page.view);
  listenControls({ state: () => page.state, change: (patch) => page.change(patch), toggleLive: () => page.toggleLive() });
  page.view.addEventListener("zoom", ({ detail }) => page.zoomed(detail));
  page.view.addEventListener("hover", ({ detail }) => page.hovered(detail));
  page.timeline.addEventListener("select", ({ detail }) => page.select(detail));
  page.timeline.addEventListener("widen", ({ detail }) => page.widen(detail));
  page.table.addEventListener("pick", ({ detail }) => pick(page, detail));
  page.feed.addEventListener("data", () => page.news());
  page.feed.addEventListener("status", ({ detail }) => page.feedChanged(detail));
  listenExports({ svg: () => page.svg(), refused: (error) => page.say(error) });
  listenSearch(page);
  listenWindow(page);
}

function listenSearch(page) {
  page.search.addEventListener("input", () => page.searchFor(page.search.value));
  page.search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") page.nextMatch(event.shiftKey ? -1 : 1);
    if (event.key === "Escape") leaveSearch(page);
  });
}

function leaveSearch(page) {
  page.search.value = "";
  page.searchFor("");
  page.view.element.focus({ preventScroll: true });
}

/** A click in the table searches for the name, a second one lets go. */
function pick(page, name) {
  page.search.value = page.search.value === name ? "" : name;
  page.searchFor(page.search.value);
}

function listenWindow(page) {
  window.addEventListener("popstate", () => page.restore());
  document.addEventListener("visibilitychange", () => page.seen(!document.hidden));
  matchMedia("(prefers-color-scheme: light)").addEventListener("change", () => page.setPalette(currentPalette()));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.closest("input, select, textarea")) return;
    event.preventDefault();
    page.search.focus();
    page.search.select();
  });
  setInterval(() => page.tick(), TICK);
}

const page = new Explore(makeParts());
connect(page);
page.start();
