/**
 * All requests of the page to the backend.  A refused request throws ApiError with the backend's own message.
 */

const SERVICE = "/querier.v1.QuerierService";

const SKEW = 2000;
let skew = 0;

/** Unix ms by the backend's clock, as far as its answers tell: a browser's own may be off. */
export function backendNow() {
  return Date.now() + skew;
}

/** The Date of an answer has whole seconds, so that small differences mean nothing. */
function noteClock(reply) {
  const offset = Date.parse(reply.headers.get("date") ?? "") - Date.now();
  skew = Math.abs(offset) > SKEW ? offset : 0;
}

const TOKEN = "otelprof-token";

/** Keeps a token for this tab; every request has it from now on. */
export function setToken(token) {
  if (token) sessionStorage.setItem(TOKEN, token);
  else sessionStorage.removeItem(TOKEN);
}

/** True when a token was entered: a refusal then means that it is the wrong one. */
export function hasToken() {
  return Boolean(sessionStorage.getItem(TOKEN));
}

/** Most bars that are asked for; the backend folds the rest into `other`. */
export const MAX_NODES = 16_384;

export class ApiError extends Error {
  constructor(message, status, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** Profile types over all data: [{id, unit, first, last, services}]. */
export async function fetchTypes(signal) {
  const answer = await get("/api/v1/types", {}, signal);
  return answer.types ?? [];
}

/** The flame graph of a type, a selector and a range in Unix milliseconds. */
export function fetchFlame({ type, query, from, until, span, trace }, signal) {
  return get("/api/v1/flamegraph", { type, query, ...linkOf(span, trace), from: Math.floor(from), until: Math.ceil(until), max_nodes: MAX_NODES }, signal);
}

/** Two sides of one type, folded together: Pyroscope's form of a difference; a side is {query, from, until}. */
export function fetchDiff({ type, left, right }, signal) {
  const side = (name, { query, from, until }) => ({
    [`${name}_query`]: query, [`${name}_from`]: Math.floor(from), [`${name}_until`]: Math.ceil(until),
  });
  return get("/api/v1/diff", { type, ...side("left", left), ...side("right", right), max_nodes: MAX_NODES }, signal);
}

/** Requests of a range, those with the largest `order` first: [{trace, name, service, start_us, duration_ns, spans, cpu_ns, …}]. */
export async function fetchTraces({ query, from, until, order }, signal) {
  return (await get("/api/v1/traces", { query, from: Math.floor(from), until: Math.ceil(until), order, limit: 200 }, signal)).traces ?? [];
}

/** The spans of a request with what each cost by itself: [{span, parent, service, name, start_us, duration_ns, cpu_ns, …}]. */
export async function fetchSpans(trace, signal) {
  return (await get("/api/v1/spans", { trace }, signal)).spans ?? [];
}

/** Points of the time line, summed over all series: [[Unix ms, value]], one every `step` seconds. */
export async function fetchSeries({ type, query, from, until, step }, signal) {
  const answer = await call("SelectSeries", { profileTypeID: type, labelSelector: query, ...bounds(from, until), step }, signal);
  return sumPoints(answer.series ?? []);
}

/** Names of labels of a range. */
export async function fetchLabelNames({ from, until }) {
  return (await call("LabelNames", bounds(from, until))).names ?? [];
}

/** Values of a label of a range. */
export async function fetchLabelValues(name, { from, until }) {
  return (await call("LabelValues", { name, ...bounds(from, until) })).names ?? [];
}

/** News from the backend as a stream of bytes (server-sent events), until `signal` ends it. */
export async function openNews(signal) {
  return (await send("/api/v1/live", { signal })).body;
}

const bounds = (from, until) => ({ start: String(Math.floor(from)), end: String(Math.ceil(until)) });

/** One call of Pyroscope's querier, Connect's unary protocol in JSON. */
function call(method, body, signal) {
  return request(`${SERVICE}/${method}`, {
    method: "POST", body: JSON.stringify(body), signal,
    headers: { "Content-Type": "application/json", "Connect-Protocol-Version": "1" },
  });
}

/** The address of a download of what is shown. */
export function exportUrl(format, { type, query, from, until, span, trace }) {
  return `/api/v1/export?${new URLSearchParams({ format, type, query, ...linkOf(span, trace), from: Math.floor(from), until: Math.ceil(until) })}`;
}

/** Parameters that leave samples of one span or request alone. */
const linkOf = (span, trace) => Object.fromEntries(Object.entries({ span, trace }).filter(([, id]) => id));

/** A download: {blob, name}, the name as the backend gives it. */
export async function fetchFile(url) {
  const reply = await send(url, {});
  const name = /filename="([^"/\\]{1,200})"/.exec(reply.headers.get("content-disposition") ?? "")?.[1];
  return { blob: await reply.blob(), name: name ?? `otelprof.${new URL(url).searchParams.get("format")}` };
}

function get(path, params, signal) {
  return request(`${path}?${new URLSearchParams(params)}`, { signal });
}

async function request(path, options) {
  return (await send(path, options)).json();
}

async function send(path, options) {
  let reply;
  try {
    reply = await fetch(path, { ...options, headers: { ...options.headers, ...authorization() } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("the backend does not answer", 0, "unavailable");
  }
  noteClock(reply);
  if (!reply.ok) throw await refusal(reply);
  return reply;
}

function authorization() {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

async function refusal(reply) {
  const text = (await reply.text()).slice(0, 1000);
  try {
    const { message, code } = JSON.parse(text);
    return new ApiError(message || `the backend refused with ${reply.status}`, reply.status, code);
  } catch {
    return new ApiError(`the backend refused with ${reply.status}`, reply.status, "");
  }
}

function sumPoints(series) {
  const sums = new Map();
  for (const { points = [] } of series) {
    for (const { timestamp = 0, value = 0 } of points) {
      sums.set(Number(timestamp), (sums.get(Number(timestamp)) ?? 0) + Number(value));
    }
  }
  return [...sums].sort((a, b) => a[0] - b[0]);
}
