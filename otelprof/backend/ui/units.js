/**
 * Values, shares and times as text.  Pure; every number that a person reads on the page is written here.
 */

const SIXTY = [
  { from: 7200e9, size: 3600e9, name: "h" },
  { from: 120e9, size: 60e9, name: "min" },
  { from: 1e9, size: 1e9, name: "s" },
  { from: 1e6, size: 1e6, name: "ms" },
  { from: 1e3, size: 1e3, name: "µs" },
];
const BINARY = ["TiB", "GiB", "MiB", "KiB"].map((name, i) => ({ from: 1024 ** (4 - i), size: 1024 ** (4 - i), name }));
const DECIMAL = [
  { from: 1e12, size: 1e12, name: "T" },
  { from: 1e9, size: 1e9, name: "G" },
  { from: 1e6, size: 1e6, name: "M" },
];
const SCALES = {
  nanoseconds: { steps: SIXTY, base: "ns" },
  bytes: { steps: BINARY, base: "B" },
  count: { steps: DECIMAL, base: "" },
};

/** Three significant digits, without an exponent. */
function significant(value) {
  const digits = value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return value.toFixed(digits);
}

/** A value of a profile: `1.23 s`, `4.50 MiB`, `12,345`.  Units that are not known stand behind the number. */
export function formatValue(value, unit) {
  const scale = SCALES[unit] ?? { steps: DECIMAL, base: unit };
  const step = scale.steps.find((candidate) => value >= candidate.from);
  const number = step ? significant(value / step.size) : Math.round(value).toLocaleString("en");
  const name = step ? step.name : scale.base;
  return name ? `${number} ${name}` : number;
}

/** A share of a whole: `45.6 %`; `<0.01 %` for what is there and can hardly be seen. */
export function formatShare(part, whole) {
  if (!(whole > 0) || !(part > 0)) return "0 %";
  const percent = (100 * part) / whole;
  if (percent < 0.01) return "<0.01 %";
  return `${percent >= 99.95 ? "100" : percent.toFixed(percent >= 10 ? 1 : 2)} %`;
}

/** A change of a share in points of a hundred: `+3.21`, `−0.40`, `0`. */
export function formatPoints(change) {
  const points = 100 * change;
  if (Math.abs(points) < 0.005) return "0";
  return `${points > 0 ? "+" : "\u2212"}${Math.abs(points).toFixed(Math.abs(points) >= 10 ? 1 : 2)}`;
}

const pad = (number) => String(number).padStart(2, "0");

/** Local time of day of a Unix time in milliseconds: `14:03:09`. */
export function formatClock(ms, seconds = true) {
  const at = new Date(ms);
  return `${pad(at.getHours())}:${pad(at.getMinutes())}${seconds ? `:${pad(at.getSeconds())}` : ""}`;
}

/** Local date and time: `2026-11-30 14:03:09`. */
export function formatTime(ms) {
  const at = new Date(ms);
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${formatClock(ms)}`;
}

/** A span of time: `45 s`, `15 min`, `6 h`, `2 d`. */
export function formatSpan(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 120) return `${trim(seconds)} s`;
  if (seconds < 7200) return `${trim(seconds / 60)} min`;
  return seconds < 172_800 ? `${trim(seconds / 3600)} h` : `${trim(seconds / 86_400)} d`;
}

const trim = (value) => String(Number(value.toFixed(1)));

/** Two times, the second one short when both are on one day. */
export function formatRange(from, until) {
  const sameDay = new Date(from).toDateString() === new Date(until).toDateString();
  return `${formatTime(from)} – ${sameDay ? formatClock(until) : formatTime(until)}`;
}
