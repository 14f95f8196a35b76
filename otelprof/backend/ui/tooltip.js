/**
 * The tooltip of the flame graph: name, kind, place, total and self.  Names are text, never markup.
 */
import { KINDS } from "./palette.js";
import { formatPoints, formatShare, formatValue } from "./units.js";

const AWAY = 14;
const LONGEST = 2000;

export class Tooltip {
  #element;

  constructor(element) {
    this.#element = element;
  }

  hide() {
    this.#element.hidden = true;
    this.#element.replaceChildren();
  }

  /** Shows what stands at a spot of the flame graph (see FlameView.at). */
  show(spot, { flame, zoom, colours }) {
    this.#element.replaceChildren(...(spot.merged ? stripLines(spot, flame) : barLines(spot, flame, zoom, colours)));
    this.#element.hidden = false;
    this.#place(spot);
  }

  #place({ x, y }) {
    const { offsetWidth, offsetHeight } = this.#element;
    const left = x + AWAY + offsetWidth > innerWidth - 8 ? x - AWAY - offsetWidth : x + AWAY;
    const top = y + AWAY + offsetHeight > innerHeight - 8 ? y - AWAY - offsetHeight : y + AWAY;
    this.#element.style.left = `${Math.max(8, left)}px`;
    this.#element.style.top = `${Math.max(8, top)}px`;
  }
}

function barLines({ bar }, flame, zoom, colours) {
  const name = flame.name[bar];
  const kind = flame.kinds[name];
  const lines = [line("tip-name", flame.names[name].slice(0, LONGEST) || "[unnamed]")];
  if (kind || flame.files[name]) lines.push(originLine(KINDS[kind] ?? kind, flame.files[name], colours[name]));
  if (flame.change) return [...lines, ...changeLines(flame, bar)];
  lines.push(valueLine("Total", flame.total[bar], flame));
  if (!flame.leafFirst) lines.push(valueLine("Self", flame.self[bar], flame));
  if (zoom > 0) lines.push(row("tip-value", "Of zoom", "", formatShare(flame.total[bar], flame.total[zoom])));
  return lines;
}

/** Both sides of a bar in a difference, and the change in points. */
function changeLines({ left, right, wholes, change, unit }, bar) {
  return [
    row("tip-value", "Baseline", formatValue(left[bar], unit), formatShare(left[bar], wholes[0])),
    row("tip-value", "Compared", formatValue(right[bar], unit), formatShare(right[bar], wholes[1])),
    row("tip-value", "Change", `${formatPoints(change[bar])} points`, ""),
  ];
}

function stripLines({ merged, value }, flame) {
  const words = line("tip-name", merged === 1 ? "1 bar thinner than a pixel" : `${merged.toLocaleString("en")} bars thinner than a pixel`);
  return flame.change ? [words] : [words, valueLine("Total", value, flame)];
}

function originLine(kind, file, colour) {
  const swatch = document.createElement("i");
  swatch.className = "swatch";
  swatch.style.background = colour;
  const element = line("tip-origin", "");
  element.append(swatch, span("tip-kind", kind), span("tip-file", file));
  return element;
}

function valueLine(label, value, flame) {
  return row("tip-value", label, formatValue(value, flame.unit), formatShare(value, flame.whole));
}

function row(className, label, value, share) {
  const element = line(className, "");
  element.append(span("tip-label", label), span("tip-number", value), span("tip-share", share));
  return element;
}

function line(className, text) {
  const element = document.createElement("div");
  element.className = className;
  element.textContent = text;
  return element;
}

function span(className, text) {
  const element = document.createElement("span");
  element.className = className;
  element.textContent = text ?? "";
  return element;
}
