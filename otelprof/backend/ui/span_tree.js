/**
 * The spans of a request as rows of a tree.  Pure; a span whose parent is missing, or stands in a circle, is a root.
 */

const MOST_ROWS = 2000;

/** Rows in the order of a tree, root first, siblings by their start: [{span, depth}]. */
export function treeOf(spans) {
  const below = childrenOf(spans);
  const rows = [];
  const seen = new Set();
  // Roots come first; spans of a circle have none and are taken up where they stand.
  for (const root of [...(below.get("") ?? []), ...spans]) climbDown(root, { below, rows, seen });
  return rows;
}

function climbDown(root, { below, rows, seen }) {
  const waiting = [{ span: root, depth: 0 }];
  while (waiting.length && rows.length < MOST_ROWS) {
    const row = waiting.pop();
    if (seen.has(row.span.span)) continue;
    seen.add(row.span.span);
    rows.push(row);
    for (const span of [...(below.get(row.span.span) ?? [])].reverse()) waiting.push({ span, depth: row.depth + 1 });
  }
}

/** Spans by their parent's id, roots under an empty one, in the order of their starts. */
function childrenOf(spans) {
  const known = new Set(spans.map(({ span }) => span));
  const below = new Map();
  for (const span of [...spans].sort((a, b) => a.start_us - b.start_us)) {
    const parent = known.has(span.parent) && span.parent !== span.span ? span.parent : "";
    if (below.has(parent)) below.get(parent).push(span);
    else below.set(parent, [span]);
  }
  return below;
}

/** First start and last end of spans that have times, in Unix microseconds; null when none has. */
export function extentOf(spans) {
  const timed = spans.filter(({ start_us: start }) => start > 0);
  if (!timed.length) return null;
  const from = Math.min(...timed.map(({ start_us: start }) => start));
  return { from, until: Math.max(from + 1, ...timed.map(({ start_us: start, duration_ns: length }) => start + length / 1000)) };
}
