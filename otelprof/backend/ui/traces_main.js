/**
 * Entry of the Traces page: makes the parts, connects them and starts.
 */
import { backendNow } from "./api.js";
import { LabelInput } from "./label_input.js";
import { SPANS, windowRange } from "./state.js";
import { Traces } from "./traces.js";

const element = (id) => document.getElementById(id);

const page = new Traces({
  status: document.querySelector("[role=status]"),
  rows: element("requests"), spans: element("spans-of-one"), detail: element("detail"), head: element("detail-facts"),
  title: element("detail-title"), service: element("service"), query: element("query"), ranges: element("spans"),
  orders: [...document.querySelectorAll("[data-order]")], main: element("main"),
});

for (const [name, span] of Object.entries(SPANS)) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = name;
  button.title = `The last ${name}`;
  button.dataset.span = span;
  button.addEventListener("click", () => page.setSpan(span));
  element("spans").append(button);
}
new LabelInput(page.query, () => windowRange(page.state, backendNow()));
page.service.addEventListener("change", () => page.setService(page.service.value));
page.query.addEventListener("keydown", (event) => {
  if (event.key === "Enter") page.change({ query: page.query.value.trim() || "{}" });
});
for (const button of page.orders) button.addEventListener("click", () => page.change({ order: button.dataset.order }));
element("close").addEventListener("click", () => page.change({ trace: "" }));
element("refresh").addEventListener("click", () => page.reload());
window.addEventListener("popstate", () => page.restore());
page.reload();
