/**
 * Pointer and keys on the flame graph: hover, click to zoom, arrows to walk, Enter to zoom, Escape to come back.
 */

/** Connects a FlameView's element to its movements. */
export function listen(view) {
  const { element } = view;
  element.addEventListener("pointermove", (event) => point(view, event));
  element.addEventListener("pointerleave", () => view.hoverAt(null));
  element.addEventListener("wheel", () => view.hoverAt(null), { passive: true });
  element.addEventListener("blur", () => view.hoverAt(null));
  element.addEventListener("click", (event) => click(view, event));
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

const KEYS = {
  ArrowUp: (flame, bar) => flame.parent[bar],
  ArrowDown: (flame, bar) => widest(flame, bar),
  ArrowLeft: (flame, bar) => sibling(flame, bar, -1),
  ArrowRight: (flame, bar) => sibling(flame, bar, 1),
};

function key(view, event) {
  if (!view.flame || event.ctrlKey || event.metaKey || event.altKey) return;
  if (walk(view, event.key) || act(view, event.key)) event.preventDefault();
}

function walk(view, name) {
  if (!KEYS[name]) return false;
  const bar = view.focus < 0 ? view.zoom : KEYS[name](view.flame, view.focus);
  if (bar >= 0) view.focusOn(bar);
  return true;
}

function act(view, name) {
  if (name === "Enter" && view.focus >= 0) view.zoomTo(view.focus);
  else if (name === "Escape") escape(view);
  else if (name === "Home") view.zoomTo(0);
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
