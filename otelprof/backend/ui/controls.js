/**
 * The pickers of the page: profile type, service, selector, range, live, panes and the export menu.
 * They show a state and tell their wishes through `change(patch)`; they keep none of their own.
 */
import { listenMenu } from "./menus.js";
import { groupOf, sortTypes, titleOf } from "./profile_types.js";
import { serviceOf, withService } from "./selector.js";
import { fixed, live, SPANS } from "./state.js";

const element = (id) => document.getElementById(id);

/** Connects the pickers; `change` gets what should become of the state, `toggleLive` is asked to pause or go on. */
export function listenControls({ state, change, toggleLive }) {
  element("type").addEventListener("change", (event) => change({ type: event.target.value }));
  element("service").addEventListener("change", (event) => change({ query: withService(state().query, event.target.value) }));
  element("query").addEventListener("keydown", (event) => {
    if (event.key === "Enter") change({ query: event.target.value.trim() || "{}" });
    if (event.key === "Escape") event.target.value = state().query;
  });
  element("live").addEventListener("click", toggleLive);
  element("clear-selection").addEventListener("click", () => change({ selection: null }));
  buildSpans(change);
  for (const button of element("panes").children) {
    button.addEventListener("click", () => change({ pane: button.dataset.pane }));
  }
  listenMenu(element("export"));
  listenMenu(element("options"));
  for (const box of flags()) box.addEventListener("change", () => change({ [box.dataset.flag]: box.checked }));
}

const flags = () => element("options").querySelectorAll("[data-flag]");

function buildSpans(change) {
  for (const [name, span] of Object.entries(SPANS)) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    button.title = `The last ${name}`;
    button.addEventListener("click", () => change({ window: live(span), selection: null }));
    button.dataset.span = span;
    element("spans").append(button);
  }
}

/** Shows a state in the pickers; `types` as the backend lists them. */
export function showControls(state, types) {
  const ids = sortTypes(new Set([...types.map(({ id }) => id), state.type].filter(Boolean)));
  const entries = ids.map((id) => ({ value: id, text: titleOf(id), group: groupOf(id) }));
  fillSelect(element("type"), entries.length ? entries : [{ value: "", text: "None yet" }], state.type);
  const service = serviceOf(state.query);
  const services = [...new Set([...types.flatMap((type) => type.services ?? []), service].filter(Boolean))].sort();
  fillSelect(element("service"), [{ value: "", text: "All services" }, ...services.map((name) => ({ value: name, text: name }))], service);
  if (document.activeElement !== element("query")) element("query").value = state.query;
  for (const button of element("spans").children) {
    press(button, state.window.live && Number(button.dataset.span) === state.window.span);
  }
  for (const button of element("panes").children) press(button, button.dataset.pane === state.pane);
  element("main").dataset.pane = state.pane;
  for (const box of flags()) box.checked = state[box.dataset.flag];
  const count = [...flags()].filter((box) => box.checked).length;
  element("options-count").hidden = !count;
  element("options-count").textContent = count;
  element("clear-selection").hidden = !state.selection;
}

export function press(button, on) {
  button.setAttribute("aria-pressed", String(on));
}

/** Rebuilds a picker only when its entries changed, so that an open one stays as it is. */
export function fillSelect(select, entries, value) {
  const sign = JSON.stringify(entries);
  if (select.dataset.sign !== sign) {
    select.dataset.sign = sign;
    select.replaceChildren(...grouped(entries));
  }
  select.value = value;
}

function grouped(entries) {
  const groups = Map.groupBy(entries, ({ group }) => group ?? "");
  return [...groups].flatMap(([name, members]) => {
    const options = members.map(({ value, text }) => new Option(text, value));
    if (!name) return options;
    const group = document.createElement("optgroup");
    group.label = name;
    group.append(...options);
    return [group];
  });
}

/** Words and colour of the live button: live, lost, paused, off (the range lies in the past). */
export function showFeed(status) {
  const words = { live: "Live", lost: "Connecting", paused: "Paused", off: "Go live" };
  const button = element("live");
  button.dataset.feed = status;
  button.lastElementChild.textContent = words[status];
  button.title = status === "live" ? "Pause updates" : "Follow new data";
  press(button, status === "live" || status === "lost");
}

/** What becomes of the window when a selection is widened to it. */
export const windowOf = ({ from, until }) => fixed(from, until);
