/**
 * What the page says when there is no graph: nothing stored yet, an empty range, a refusal, a backend that is away.
 */
import { hasToken, setToken } from "./api.js";
import { titleOf } from "./profile_types.js";
import { formatTime } from "./units.js";

/** Nothing was ever stored: what to do. */
export function firstRun() {
  const steps = [
    ["Profile this machine", "otelprof up"],
    ["See it with the demo", "otelprof up --demo"],
    ["Send OTLP profiles here", `${location.origin}/v1development/profiles`],
  ];
  const list = make("ol", "");
  list.append(...steps.map(([what, how]) => {
    const item = make("li", "");
    item.append(make("span", what), make("code", how));
    return item;
  }));
  return [make("h2", "Waiting for the first profile"), make("p", "Nothing has been stored yet. This page draws it as soon as it arrives."), list];
}

/** An empty range: the last data and where there are some; `jump(type)` goes to the last data of a type. */
export function emptyRange({ from, until, type, types, service }, jump) {
  const own = types.filter((entry) => !service || (entry.services ?? []).includes(service));
  const last = Math.max(...(own.length ? own : types).map((entry) => entry.last));
  const parts = [
    make("h2", `no samples between ${formatTime(from)} and ${formatTime(until)}`),
    make("p", `last data ${formatTime(last)}${service && !own.length ? `, none from ${service}` : ""}`),
    make("p", own.length ? "Types with data:" : `Types with data from other services:`),
  ];
  const chips = make("div", "");
  chips.className = "chips";
  chips.append(...(own.length ? own : types).map((entry) => chip(entry, entry.id === type, jump)));
  return [...parts, chips];
}

function chip(entry, current, jump) {
  const button = make("button", titleOf(entry.id));
  button.type = "button";
  button.className = current ? "button primary" : "button";
  button.title = `${entry.id}\nlast data ${formatTime(entry.last)}`;
  button.addEventListener("click", () => jump(entry));
  return button;
}

/** A refusal or silence of the backend; `again` tries once more, `brief` leaves the heading out. 401 asks for a token. */
export function failure(error, again, brief) {
  if (error.status === 401) return tokenForm(again, brief);
  const button = make("button", "Try again");
  button.type = "button";
  button.className = "button";
  button.addEventListener("click", again);
  const lines = [make("p", error.message), button];
  return brief ? lines : [make("h2", "This profile can't be shown"), ...lines];
}

function tokenForm(again, brief) {
  const form = make("form", "");
  const [label, input, button] = [make("label", "Token"), make("input", ""), make("button", "Continue")];
  Object.assign(input, { type: "password", required: true, autocomplete: "off", name: "token" });
  button.className = "button primary";
  label.append(input);
  form.append(label, button);
  form.className = "token";
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    setToken(input.value.trim());
    again();
  });
  const words = make("p", hasToken() ? "This token isn't accepted." : "One of those in the backend's --token-file; it is kept for this tab only.");
  return brief ? [words, form] : [make("h2", "This backend asks for a token"), words, form];
}

/** The function whose callers and callees are asked for isn't in what is loaded. */
export function missingFunction(name, back) {
  const button = make("button", "Back to the whole graph");
  button.type = "button";
  button.className = "button";
  button.addEventListener("click", back);
  return [make("p", `${name.slice(0, 200)} isn't in this profile as it is shown`), button];
}

/** Neither side of a comparison has samples. */
export function nothingToCompare() {
  return [make("h2", "no samples on either side"), make("p", "Drag over a part of the time lines that has values, or take a longer range.")];
}

/** No request has samples in the range: what is needed for some. */
export function withoutRequests() {
  return [
    make("h2", "no requests in this time"),
    make("p", "A request is here once a program that makes spans with OpenTelemetry was sampled inside of one: the agent reads the current span of every sample, without a change of the program."),
  ];
}

/** Shows lines in the status, or nothing; `over` lays them over a graph that stays. */
export function showStatus(element, lines = [], over = false) {
  element.classList.toggle("over-graph", over);
  element.replaceChildren(...lines);
  element.hidden = lines.length === 0;
}

function make(tag, text) {
  const element = document.createElement(tag);
  element.textContent = text;
  return element;
}
