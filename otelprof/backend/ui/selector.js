/**
 * Label selectors (`{service_name="web", env!="dev"}`): reading and replacing the service in them.  Pure.
 */

const SERVICE = /(^|[{,])\s*service(?:_name|\.name)\s*=\s*"((?:[^"\\]|\\.)*)"\s*/;

/** The selector of one service, or of all when it is empty. */
export function selectorOf(service) {
  return service ? `{service_name=${JSON.stringify(service)}}` : "{}";
}

/** The service that a selector names with `=`, or an empty text. */
export function serviceOf(selector) {
  const found = SERVICE.exec(selector);
  if (!found) return "";
  try {
    return JSON.parse(`"${found[2]}"`);
  } catch {
    return found[2];
  }
}

/** The selector with another service; its other matchers stay. */
export function withService(selector, service) {
  const inner = selector.trim().replace(/^\{/, "").replace(/\}$/, "");
  const others = inner.replace(SERVICE, "$1").replace(/,\s*,/, ",").replace(/^[\s,]+|[\s,]+$/g, "");
  const own = selectorOf(service).slice(1, -1);
  return `{${[own, others].filter(Boolean).join(", ")}}`;
}

const NAME_PART = /^(\s*)([A-Za-z_][\w.]*)?$/;
const VALUE_PART = /^\s*([A-Za-z_][\w.]*)\s*(=~|!~|!=|=)\s*("?)((?:[^"\\]|\\.)*)$/;

/**
 * What could be completed where the caret stands: {kind: "name" | "value", label, typed, from}; `from` is where the typed part
 * begins, `label` whose value it is.  null where nothing can.
 */
export function completionAt(text, caret) {
  const before = text.slice(0, caret);
  const begin = matcherStart(before);
  const part = before.slice(begin);
  const name = NAME_PART.exec(part);
  if (name) return { kind: "name", label: "", typed: name[2] ?? "", from: begin + name[1].length };
  const value = VALUE_PART.exec(part);
  if (!value) return null;
  return { kind: "value", label: value[1], typed: value[4], from: caret - value[4].length - value[3].length };
}

/** Where the matcher before the caret begins: after the last brace or comma that isn't inside of quotes. */
function matcherStart(before) {
  let quoted = false;
  let begin = 0;
  for (let i = 0; i < before.length; i++) {
    if (quoted && before[i] === "\\") i++;
    else if (before[i] === '"') quoted = !quoted;
    else if (!quoted && (before[i] === "{" || before[i] === ",")) begin = i + 1;
  }
  return begin;
}

/** The text with a choice in the place of what was typed, and where the caret goes: {text, caret}. */
export function complete(text, caret, { kind, from }, choice) {
  const made = kind === "name" ? `${choice}=` : JSON.stringify(choice);
  let rest = text.slice(caret);
  if (kind === "value") rest = rest.replace(/^[^",}]*"?/, "");
  if (!rest.includes("}")) rest += "}";
  const head = `${text.slice(0, from).includes("{") ? "" : "{"}${text.slice(0, from)}${made}`;
  return { text: head + rest, caret: head.length };
}
