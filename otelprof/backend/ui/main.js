/**
 * Entry of the page: makes the parts, connects them and starts.
 */
import { backendNow } from "./api.js";
import { BarMenu } from "./bar_menu.js";
import { listenControls } from "./controls.js";
import { Explore } from "./explore.js";
import { listenExports } from "./exports.js";
import { listen } from "./flame_input.js";
import { FlameView } from "./flame_view.js";
import { FunctionTable } from "./function_table.js";
import { Graph } from "./graph.js";
import { LabelInput } from "./label_input.js";
import { LiveFeed } from "./live.js";
import { currentPalette, listenSearchKey, listenTheme } from "./page_keys.js";
import { windowRange } from "./state.js";
import { Timeline } from "./timeline.js";
import { Tooltip } from "./tooltip.js";

const TICK = 5000;
const element = (id) => document.getElementById(id);

function makeGraph() {
  const palette = currentPalette();
  return new Graph({
    palette,
    view: new FlameView(document.querySelector("[data-testid=flamegraph]"), palette),
    callers: new FlameView(element("callers"), palette),
    tooltip: new Tooltip(document.querySelector("[role=tooltip]")),
    table: new FunctionTable(element("functions")),
    menu: new BarMenu(),
    head: element("function-head"), found: element("found"), crumbs: element("crumbs"), legend: element("legend"),
    losses: element("losses"),
  });
}

function makeParts() {
  const graph = makeGraph();
  return {
    graph,
    view: graph.view,
    timeline: new Timeline(element("timeline"), element("time-note")),
    feed: new LiveFeed(),
    status: document.querySelector("[role=status]"),
    search: element("search"), title: element("title"), range: element("range"), only: element("only"),
  };
}

function connect(page) {
  const { graph } = page;
  listen(graph.view);
  listen(graph.callers);
  new LabelInput(element("query"), () => windowRange(page.state, backendNow()));
  listenControls({ state: () => page.state, change: (patch) => page.change(patch), toggleLive: () => page.toggleLive() });
  graph.addEventListener("zoom", ({ detail }) => page.zoomed(detail));
  graph.addEventListener("around", ({ detail }) => page.around(detail));
  graph.addEventListener("search", ({ detail }) => page.searchFor(page.search.value === detail ? "" : detail));
  page.timeline.addEventListener("select", ({ detail }) => page.select(detail));
  page.timeline.addEventListener("widen", ({ detail }) => page.widen(detail));
  page.feed.addEventListener("data", () => page.news());
  page.feed.addEventListener("status", ({ detail }) => page.feedChanged(detail));
  listenExports({ svg: () => graph.svg(page.words), png: () => graph.png(page.words), refused: (error) => page.say(error) });
  listenSearch(page);
  listenWindow(page);
}

function listenSearch(page) {
  page.search.addEventListener("input", () => page.searchFor(page.search.value));
  page.search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") page.graph.nextMatch(event.shiftKey ? -1 : 1);
    if (event.key === "Escape") leaveSearch(page);
  });
}

function leaveSearch(page) {
  page.searchFor("");
  page.view.element.focus({ preventScroll: true });
}

function listenWindow(page) {
  window.addEventListener("popstate", () => page.restore());
  document.addEventListener("visibilitychange", () => page.seen(!document.hidden));
  listenTheme((palette) => page.setPalette(palette));
  listenSearchKey(page.search);
  setInterval(() => page.tick(), TICK);
}

const page = new Explore(makeParts());
connect(page);
page.start();
