/**
 * The head over callers and callees: which function they belong to, where it stands, its value, and the way back.
 */
import { placeOf } from "./flame_data.js";
import { nearestOf } from "./flame_shape.js";
import { KINDS, colourOf } from "./palette.js";
import { formatShare, formatValue } from "./units.js";

const LONGEST = 500;
const MOST = 4;

/**
 * Fills the head for {callers, callees, palette, copy, around}, null hides it: `copy(text)` copies, `around({name, file})` goes
 * to another function, to none with an empty name.
 */
export function showFunctionHead(element, facts) {
  element.hidden = !facts;
  element.replaceChildren(...(facts ? partsOf(facts) : []));
}

function partsOf({ callers, callees, palette, copy, around }) {
  const flame = callees;
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
    button("Back to the whole graph", () => around({ name: "", file: "" })),
    ...neighbours(callers, callees, around),
  ];
}

/** Who calls it and what it calls, in words: the nearest of each, and where native frames stand between, the nearest Python. */
function neighbours(callers, callees, around) {
  const direct = nearestOf(callers);
  const python = direct.every(({ name }) => callers.kinds[name] === "python") ? [] : nearestOf(callers, "python");
  return [["Called by", callers, direct], ["From Python", callers, python], ["Calls", callees, nearestOf(callees)]]
    .filter(([, , found]) => found.length)
    .map(([words, flame, found]) => line(words, flame, found, around));
}

function line(words, flame, found, around) {
  const element = make("p", "neighbours", "");
  element.append(make("span", "muted", words));
  for (const { name, value } of found.slice(0, MOST)) {
    const go = button(flame.names[name].slice(0, LONGEST), () => around({ name: flame.names[name], file: placeOf(flame.files[name]) }));
    element.append(go, make("small", "muted", formatShare(value, flame.total[0])));
  }
  if (found.length > MOST) element.append(make("small", "muted", `and ${found.length - MOST} more`));
  return element;
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
