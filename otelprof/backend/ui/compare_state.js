/**
 * What the Compare page shows, as one plain object, and the address that says the same.  Pure.
 *
 * `/compare?type=ID&from=MS&until=MS&left_query={…}&left_from=MS&left_until=MS&right_query=…`: `from` and `until` are the span of
 * both time lines, left and right what is compared.  What is left out: the selector `query` on both sides, the two halves of
 * the span.
 */
import { parseState, windowRange } from "./state.js";

export const VIEWS = ["diff", "sides", "table"];
const FLAGS = ["python", "recursion", "flip"];
const ORDERS = ["self", "total"];

/** The state that the search part of an address describes; relative times are seen from `now`. */
export function parseCompare(search, now) {
  const params = new URLSearchParams(search);
  const { window, type, query, search: text } = parseState(search);
  const span = windowRange({ window }, now);
  const middle = Math.round((span.from + span.until) / 2);
  const word = (name, words) => (words.includes(params.get(name)) ? params.get(name) : words[0]);
  return {
    type, span, search: text, view: word("view", VIEWS), order: word("order", ORDERS),
    left: side(params, "left", { query, from: span.from, until: middle }),
    right: side(params, "right", { query, from: middle, until: span.until }),
    ...Object.fromEntries(FLAGS.map((flag) => [flag, params.get(flag) === "1"])),
  };
}

function side(params, name, preset) {
  const time = (key) => (/^\d{1,15}$/.test(params.get(`${name}_${key}`) ?? "") ? Number(params.get(`${name}_${key}`)) : null);
  const [from, until] = [time("from"), time("until")];
  const known = from !== null && until !== null && from !== until;
  return {
    query: params.get(`${name}_query`) || preset.query,
    from: known ? Math.min(from, until) : preset.from,
    until: known ? Math.max(from, until) : preset.until,
  };
}

/** The search part of the address of a state. */
export function formatCompare(state) {
  const params = new URLSearchParams({ type: state.type, from: Math.round(state.span.from), until: Math.round(state.span.until) });
  for (const name of ["left", "right"]) {
    for (const [key, value] of Object.entries(state[name])) params.set(`${name}_${key}`, key === "query" ? value : Math.round(value));
  }
  if (state.view !== VIEWS[0]) params.set("view", state.view);
  if (state.order !== ORDERS[0]) params.set("order", state.order);
  if (state.search) params.set("search", state.search);
  for (const flag of FLAGS) if (state[flag]) params.set(flag, "1");
  return `?${params}`;
}

/** The state with another span of time; both sides get their half of it. */
export function withSpan(state, span) {
  const middle = Math.round((span.from + span.until) / 2);
  return {
    ...state, span,
    left: { ...state.left, from: span.from, until: middle },
    right: { ...state.right, from: middle, until: span.until },
  };
}
