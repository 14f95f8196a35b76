/**
 * The head over callers and callees: which function they belong to, where it stands, its value, and the way back.
 */
import { KINDS, colourOf } from "./palette.js";
import { formatShare, formatValue } from "./units.js";

const LONGEST = 500;

/** Fills the head for the root of a graph of callees; null hides it.  `copy(text)` and `close()` are what its buttons do. */
export function showFunctionHead(element, facts) {
  element.hidden = !facts;
  element.replaceChildren(...(facts ? partsOf(facts) : []));
}

function partsOf({ flame, palette, copy, close }) {
  const name = flame.name[0];
  const swatch = make("i", "swatch", "");
  swatch.style.background = colourOf(palette, flame, name);
  const value = `${formatValue(flame.total[0], flame.unit)} · ${formatShare(flame.total[0], flame.whole)}`;
  return [
    make("span", "muted", "Callers above, callees below"), swatch,
    make("b", "head-name", flame.names[name].slice(0, LONGEST)),
    make("span", "muted", [KINDS[flame.kinds[name]], flame.files[name]].filter(Boolean).join(" · ")),
    make("span", "head-value", value),
    button("Copy name", () => copy(flame.names[name])),
    button("Back to the whole graph", close),
  ];
}

function button(words, act) {
  const made = make("button", "link", words);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

function make(tag, className, text) {
  const element = document.createElement(tag);
  element.className = className;
  element.textContent = text;
  return element;
}
