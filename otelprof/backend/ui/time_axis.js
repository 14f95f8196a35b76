/**
 * Steps, buckets and ticks of the time line.  Pure.
 */

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 43_200, 86_400];
const POINTS = 180;
const TICKS = [1e3, 2e3, 5e3, 10e3, 15e3, 30e3, 60e3, 120e3, 300e3, 600e3, 900e3, 1800e3, 3600e3, 7200e3, 10_800e3, 21_600e3, 43_200e3, 86_400e3];

/** Seconds between two points so that a range has at most 180 of them. */
export function stepOf({ from, until }) {
  const wanted = (until - from) / 1000 / POINTS;
  return STEPS.find((step) => step >= wanted) ?? Math.ceil(wanted / 86_400) * 86_400;
}

/** Points as buckets of a range: [{from, until, value}]; a point stands for the step that begins with it. */
export function bucketsOf(points, step, { from, until }) {
  const span = step * 1000;
  return points
    .map(([at, value]) => ({ from: at, until: at + span, value: Math.max(0, value) }))
    .filter((bucket) => bucket.until > from && bucket.from < until);
}

/** Unix times of the marks on an axis, at least `apart` pixels from each other, on round local times. */
export function ticksOf({ from, until }, width, apart = 90) {
  const least = ((until - from) * apart) / Math.max(width, 1);
  const size = TICKS.find((tick) => tick >= least) ?? Math.ceil(least / 86_400e3) * 86_400e3;
  const shift = new Date(from).getTimezoneOffset() * 60e3;
  const ticks = [];
  for (let at = Math.ceil((from - shift) / size) * size + shift; at <= until && ticks.length < 100; at += size) ticks.push(at);
  return ticks;
}
