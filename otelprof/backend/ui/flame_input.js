/**
 * Pointer and keys on the flame graph: hover, click to zoom, arrows to walk, Enter to zoom, Escape to come back; a right click,
 * the menu key or Shift+F10 ask for what can be done with a bar, and so do the letters of LETTERS.
 */

/** Letters and what they do with the marked bar. */
const LETTERS = { c: "copy", s: "around" };

/** Connects a FlameView's element to its movements. */
export function listen(view) {
  const { element } = view;
  element.addEventListener("pointermove", (event) => point(view, event));
  element.addEventListener("pointerleave", () => view.hoverAt(null));
  element.addEventListener("wheel", () => view.hoverAt(null), { passive: true });
  element.addEventListener("blur", () => view.hoverAt(null));
  element.addEventListener("click", (event) => click(view, event));
  element.addEventListener("contextmenu", (event) => menu(view, event));
  element.addEventListener("keydown", (event) => key(view, event));
}

function point(view, event) {
  const spot = view.at(event.clientX, event.clientY);
  view.element.classList.toggle("over", Boolean(spot));
  view.hoverAt(spot);
}

/** A click on a bar zooms to it, on the zoomed bar itself one up; on a strip to the bar that holds it. */
function click(view, event) {
  const spot = view.at(event.clientX, event.clientY);
  if (!spot) return;
  const { parent } = view.flame;
  const bar = spot.merged ? parent[spot.bar] : spot.bar;
  view.zoomTo(bar === view.zoom && bar > 0 && !spot.merged ? parent[bar] : Math.max(bar, 0));
  view.hoverAt(null);
}

/** The menu key comes as a contextmenu event without a pointer. */
function menu(view, event) {
  const marked = view.focus >= 0 ? view.spotOf(view.focus) : null;
  const spot = event.button === 2 || event.pointerType === "touch" ? view.at(event.clientX, event.clientY) : marked;
  if (!spot || spot.merged) return;
  event.preventDefault();
  view.hoverAt(null);
  view.dispatchEvent(new CustomEvent("menu", { detail: spot }));
}

const TO_CALLER = (flame, bar) => flame.parent[bar];
const TO_CALLEE = (flame, bar) => widest(flame, bar);
const KEYS = {
  ArrowUp: (flame, bar, flipped) => (flipped ? TO_CALLEE : TO_CALLER)(flame, bar),
  ArrowDown: (flame, bar, flipped) => (flipped ? TO_CALLER : TO_CALLEE)(flame, bar),
  ArrowLeft: (flame, bar) => sibling(flame, bar, -1),
  ArrowRight: (flame, bar) => sibling(flame, bar, 1),
};

function key(view, event) {
  if (!view.flame || event.ctrlKey || event.metaKey || event.altKey) return;
  if (walk(view, event.key) || act(view, event.key)) event.preventDefault();
}

function walk(view, name) {
  if (!KEYS[name]) return false;
  const bar = view.focus < 0 ? view.zoom : KEYS[name](view.flame, view.focus, view.flipped);
  if (bar >= 0) view.focusOn(bar);
  return true;
}

function act(view, name) {
  if (name === "Enter" && view.focus >= 0) view.zoomTo(view.focus);
  else if (name === "Escape") escape(view);
  else if (name === "Home") view.zoomTo(0);
  else if (LETTERS[name] && view.focus > 0) view.dispatchEvent(new CustomEvent(LETTERS[name], { detail: view.focus }));
  else return false;
  return true;
}

/** Out of the zoom by one bar; without a zoom the mark goes. */
function escape(view) {
  if (view.zoom > 0) {
    view.zoomTo(view.flame.parent[view.zoom]);
    return;
  }
  view.focus = -1;
  view.hoverAt(null);
  view.paint();
}

function widest(flame, bar) {
  let found = -1;
  for (let child = flame.childFrom[bar]; child < flame.childUntil[bar]; child++) {
    if (found < 0 || flame.total[child] > flame.total[found]) found = child;
  }
  return found;
}

function sibling(flame, bar, step) {
  const above = flame.parent[bar];
  if (above < 0) return -1;
  const next = bar + step;
  return next >= flame.childFrom[above] && next < flame.childUntil[above] ? next : -1;
}
