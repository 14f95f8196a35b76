/**
 * Short movements of the flame graph: from one view to another, and from old places to new ones when data change.
 */

const TIME = 220;

/** True when the system asks for less motion. */
const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

const ease = (t) => 1 - (1 - t) ** 3;

/** Calls `step(0…1)` once a frame, at the end with 1; a new movement stops the one before. */
export class Motion {
  #frame = 0;

  run(step) {
    cancelAnimationFrame(this.#frame);
    if (still() || document.hidden) {
      step(1);
      return;
    }
    const begin = performance.now();
    const tick = (now) => {
      const t = Math.min(1, Math.max(0, (now - begin) / TIME));
      if (t < 1) this.#frame = requestAnimationFrame(tick);
      step(ease(t));
    };
    step(0);
    this.#frame = requestAnimationFrame(tick);
  }

  stop() {
    cancelAnimationFrame(this.#frame);
  }
}

/** A view between two. */
export function between(a, b, t) {
  return { from: a.from + (b.from - a.from) * t, until: a.until + (b.until - a.until) * t };
}

/** Where each bar of a layout stood, by its path. */
export function placesOf(flame, layout) {
  const places = new Map();
  layout.bar.forEach((bar, box) => {
    if (!layout.merged[box]) places.set(flame.path[bar], [layout.x[box], layout.width[box]]);
  });
  return places;
}

/** The layout on its way from old places; bars that are new stand where they belong. */
export function moved(flame, layout, places, t) {
  const x = layout.x.slice();
  const width = layout.width.slice();
  layout.bar.forEach((bar, box) => {
    const old = layout.merged[box] ? undefined : places.get(flame.path[bar]);
    if (!old) return;
    x[box] = old[0] + (x[box] - old[0]) * t;
    width[box] = old[1] + (width[box] - old[1]) * t;
  });
  return { ...layout, x, width };
}
