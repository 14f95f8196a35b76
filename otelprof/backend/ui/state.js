/**
 * What the page shows, as one plain object, and the address that says the same:
 * `/explore?type=ID&query={…}&from=MS&until=MS`, `from=now-15m&until=now` while live.  Pure.
 *
 * `window` is the span of the time line, `selection` the part of it that the flame graph shows (null: all of it).  With a
 * selection `from` and `until` are the selection and `window` has the span of the time line, so that from and until always
 * are what the flame graph shows.  `around` is the function whose callers and callees are shown, `file` where it stands;
 * `span` and `trace` are the one span or request whose samples are shown.
 */

export const SPANS = { "1m": 60e3, "5m": 300e3, "15m": 900e3, "1h": 3600e3, "6h": 21_600e3, "24h": 86_400e3 };
const DEFAULT_SPAN = SPANS["5m"];
const LONGEST = 3660 * 86_400e3;
const UNITS = { s: 1e3, m: 60e3, h: 3600e3, d: 86_400e3 };
const PANES = ["both", "flame", "table"];
/** What may be on or off: fold to Python, fold recursion, leaf first, root at the bottom. */
export const FLAGS = ["python", "recursion", "invert", "flip"];

/** A window that ends now and moves on. */
export const live = (span) => ({ live: true, span });

/** A window between two Unix times in milliseconds. */
export const fixed = (from, until) => ({ live: false, from: Math.min(from, until), until: Math.max(from, until) });

/** The state that the search part of an address describes; what can't be read gets its default. */
export function parseState(search) {
  const params = new URLSearchParams(search);
  const shown = parseWindow(params.get("from"), params.get("until"));
  const around = parseAround(params.get("window"));
  return {
    type: params.get("type") ?? "",
    query: params.get("query") || "{}",
    window: around ?? shown ?? live(DEFAULT_SPAN),
    selection: around && shown && !shown.live ? { from: shown.from, until: shown.until } : null,
    search: params.get("search") ?? "",
    zoom: /^[0-9a-f]{1,8}$/.test(params.get("zoom") ?? "") ? parseInt(params.get("zoom"), 16) : 0,
    pane: PANES.includes(params.get("pane")) ? params.get("pane") : "both",
    around: params.get("around") ?? "",
    file: params.get("file") ?? "",
    span: hexOf(params.get("span"), 16),
    trace: hexOf(params.get("trace"), 32),
    ...Object.fromEntries(FLAGS.map((flag) => [flag, params.get(flag) === "1"])),
  };
}

/** The search part of the address of a state. */
export function formatState(state) {
  const params = new URLSearchParams();
  const [from, until] = state.selection ? [state.selection.from, state.selection.until] : ends(state.window);
  params.set("type", state.type);
  params.set("query", state.query);
  params.set("from", from);
  params.set("until", until);
  if (state.selection) params.set("window", ends(state.window).join("~"));
  if (state.search) params.set("search", state.search);
  if (state.zoom) params.set("zoom", state.zoom.toString(16));
  if (state.pane !== "both") params.set("pane", state.pane);
  for (const key of ["around", "file", "trace", "span"]) if (state[key]) params.set(key, state[key]);
  for (const flag of FLAGS) if (state[flag]) params.set(flag, "1");
  return `?${params}`;
}

/** An id of so many hex digits, or an empty text. */
function hexOf(text, digits) {
  return text && text.length === digits && /^[0-9a-f]+$/.test(text) ? text : "";
}

/** Span of the time line in Unix milliseconds. */
export function windowRange(state, now) {
  const { window } = state;
  return window.live ? { from: now - window.span, until: now } : { from: window.from, until: window.until };
}

/** Span of the flame graph in Unix milliseconds. */
export function shownRange(state, now) {
  return state.selection ?? windowRange(state, now);
}

/** True when new data can change what is shown. */
export function isOpen(state, now) {
  return state.window.live || state.window.until > now;
}

function ends(window) {
  return window.live ? [`now-${formatDuration(window.span)}`, "now"] : [window.from, window.until];
}

function formatDuration(ms) {
  const unit = ["d", "h", "m"].find((name) => ms % UNITS[name] === 0) ?? "s";
  return `${Math.max(1, Math.round(ms / UNITS[unit]))}${unit}`;
}

function parseAround(text) {
  const [from, until] = (text ?? "").split("~");
  return parseWindow(from, until);
}

function parseWindow(from, until) {
  const span = parseDuration(from ?? "");
  if (span && (!until || until === "now")) return live(span);
  const [first, last] = [parseTime(from), parseTime(until)];
  return first === null || last === null || first === last ? null : fixed(first, last);
}

function parseDuration(text) {
  const found = /^now-(\d{1,6})([smhd])$/.exec(text);
  const span = found ? Number(found[1]) * UNITS[found[2]] : 0;
  return span > 0 && span <= LONGEST ? span : 0;
}

function parseTime(text) {
  return /^\d{1,15}$/.test(text ?? "") ? Number(text) : null;
}
