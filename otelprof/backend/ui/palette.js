/**
 * Colours of frames: one hue per kind, a few shades of it chosen by the name, so that neighbours differ and a name keeps its
 * colour.  The hues stand in tokens.css as `--kind-KIND: H S L` and follow the system's theme.
 */
import { hashText } from "./flame_data.js";

/** Kinds with their words for the legend, in its order. */
export const KINDS = { python: "Python", native: "Native", kernel: "Linux kernel", cuda: "CUDA", mark: "Marks", other: "Other" };
const SHADES = [-5, -3, -1, 1, 3, 5];
const STRONG_CHANGE = 0.1;
const CHANGE_STEPS = 8;

/** The palette of a theme; `style` is the computed style of the document's root. */
export function readPalette(style) {
  const value = (name) => style.getPropertyValue(name).trim();
  const shades = Object.fromEntries(Object.keys(KINDS).map((kind) => [kind, shadesOf(value(`--kind-${kind}`))]));
  return {
    shades,
    changes: { less: rampOf(value("--same"), value("--less")), more: rampOf(value("--same"), value("--more")) },
    text: value("--frame-text"),
    faint: value("--frame-faint"),
    faintText: value("--frame-faint-text"),
    strip: value("--frame-strip"),
    hover: value("--frame-hover"),
    focus: value("--frame-focus"),
    paper: value("--paper"),
    ink: value("--ink"),
    font: value("--sans"),
  };
}

/** Fill of a name of a flame graph. */
export function colourOf(palette, flame, name) {
  const shades = palette.shades[flame.kinds[name]] ?? palette.shades.other;
  return shades[hashText(flame.names[name]) % shades.length];
}

/** Fills of all names, to be looked up while drawing. */
export function coloursOf(palette, flame) {
  return flame.names.map((_, name) => colourOf(palette, flame, name));
}

/**
 * What fills a bar: the colour of its name or, in a difference (`flame.change`: how much a bar's share grew, in parts of the
 * whole), blue for less and red for more, the stronger the more changed.
 */
export function fillOf(palette, flame, colours) {
  if (!flame.change) return (bar) => colours[flame.name[bar]];
  return (bar) => changeColour(palette, flame.change[bar]);
}

/** The colour of a change of share: a tenth of the whole and more has the full one. */
export function changeColour({ changes }, change) {
  const strength = Math.min(1, Math.sqrt(Math.abs(change) / STRONG_CHANGE));
  const shades = change < 0 ? changes.less : changes.more;
  return shades[Math.round(strength * (shades.length - 1))];
}

const numbers = (token) => token.split(/\s+/).map(parseFloat);

/** Colours from the grey of "same" to one that says "changed"; all but the first have the hue of the end. */
function rampOf(from, to) {
  const [[same, paleSaturation, paleLightness], [hue, saturation, lightness]] = [numbers(from), numbers(to)];
  return Array.from({ length: CHANGE_STEPS }, (_, i) => {
    const t = i / (CHANGE_STEPS - 1);
    return hex(i ? hue : same, (paleSaturation + (saturation - paleSaturation) * t) / 100, (paleLightness + (lightness - paleLightness) * t) / 100);
  });
}

function shadesOf(token) {
  const [hue, saturation, lightness] = numbers(token);
  return SHADES.map((shift) => hex(hue + shift, saturation / 100, (lightness + shift * 0.8) / 100));
}

/** HSL as `#rrggbb` (CSS Color 4, section 7.1). */
function hex(hue, saturation, lightness) {
  const reach = saturation * Math.min(lightness, 1 - lightness);
  const channel = (n) => {
    const k = (n + hue / 30) % 12;
    return Math.round(255 * (lightness - reach * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return `#${[0, 8, 4].map((n) => channel(n).toString(16).padStart(2, "0")).join("")}`;
}
