/**
 * The path from the root to the zoomed bar, each step a button, and the legend of the frame kinds.
 */
import { ancestors } from "./flame_data.js";
import { KINDS } from "./palette.js";
import { formatShare, formatValue } from "./units.js";

const TAIL = 3;
const LONGEST = 120;

/** Fills `element` with the path to the zoom; the wishes {go, around, copy} are called with a bar. */
export function showCrumbs(element, flame, zoom, { go, around, copy }) {
  if (!flame) {
    element.replaceChildren();
    return;
  }
  const path = ancestors(flame, zoom);
  const shown = path.length > TAIL + 1 ? [path[0], -1, ...path.slice(-TAIL)] : path;
  const parts = shown.flatMap((bar, i) => [...(i ? [text("sep", "›")] : []), bar < 0 ? text("sep", "…") : step(flame, bar, bar === zoom, go)]);
  element.replaceChildren(...parts, text("value", valueOf(flame, zoom)));
  if (zoom > 0) element.append(reset(go), ...actionsOf(zoom, around, copy));
}

/** The zoomed bar's value and share; in a difference both sides' shares. */
function valueOf({ change, left, right, wholes, total, whole, unit }, zoom) {
  if (change) return `${formatShare(left[zoom], wholes[0])} → ${formatShare(right[zoom], wholes[1])}`;
  return total[zoom] === whole ? formatValue(whole, unit) : `${formatValue(total[zoom], unit)} · ${formatShare(total[zoom], whole)}`;
}

function actionsOf(zoom, around, copy) {
  return [...(around ? [action("Callers and callees", () => around(zoom))] : []), action("Copy name", () => copy(zoom))];
}

function action(words, act) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "link";
  button.textContent = words;
  button.addEventListener("click", act);
  return button;
}

function step(flame, bar, current, go) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = bar || flame.name[0] ? flame.names[flame.name[bar]].slice(0, LONGEST) : "All";
  button.title = flame.names[flame.name[bar]].slice(0, 1000);
  if (current) button.setAttribute("aria-current", "true");
  button.addEventListener("click", () => go(bar));
  return button;
}

function reset(go) {
  const button = document.createElement("button");
  button.type = "button";
  button.dataset.reset = "";
  button.textContent = "✕";
  button.title = "Reset zoom (Home)";
  button.setAttribute("aria-label", "Reset zoom");
  button.addEventListener("click", () => go(0));
  return button;
}

function text(className, words) {
  const element = document.createElement("span");
  element.className = className;
  element.textContent = words;
  return element;
}

/** Fills a list with the kinds that occur and their shares of the self values. */
export function showLegend(list, kinds, palette) {
  const whole = Object.values(kinds).reduce((sum, value) => sum + value, 0);
  const present = Object.keys(KINDS).filter((kind) => kinds[kind] !== undefined);
  list.replaceChildren(...present.map((kind) => entry(kind, palette.shades[kind][3], kinds[kind] ? formatShare(kinds[kind], whole) : "")));
}

function entry(kind, colour, share) {
  const item = document.createElement("li");
  const swatch = document.createElement("i");
  swatch.className = "swatch";
  swatch.style.background = colour;
  const part = document.createElement("b");
  part.textContent = share;
  item.append(swatch, KINDS[kind], " ", part);
  return item;
}
