/**
 * The line that says that only one span's or request's samples are shown, with the ways to its request and to all samples.
 */

/** Shows or hides the line for a state with `span` and `trace`; `all()` takes the restriction away. */
export function showSpanNote(element, { span, trace }, all) {
  element.hidden = !(span || trace);
  if (element.hidden) return;
  const words = document.createElement("b");
  words.textContent = span ? `Only samples of span ${span}` : `Only samples of request ${trace}`;
  const back = document.createElement("a");
  back.className = "link";
  back.textContent = "Back to its request";
  back.href = `/traces?${new URLSearchParams({ ...Object.fromEntries(new URLSearchParams(location.search)), span: "", trace })}`;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "link";
  button.textContent = "Show all samples";
  button.addEventListener("click", all);
  element.replaceChildren(words, ...(trace ? [back] : []), button);
}
