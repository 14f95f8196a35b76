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
