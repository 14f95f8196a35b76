/**
 * Functions of a flame graph with their self and total values, and the shares of the frame kinds.  Pure.
 */

/** One entry per name below `root`: {name, self, total}; a recursive function's total counts once per stack. */
export function functionsOf(flame, root = 0) {
  const size = flame.names.length;
  const sums = { self: new Float64Array(size), total: new Float64Array(size), open: new Int32Array(size), seen: new Uint8Array(size) };
  if (flame.count) walk(flame, root, sums);
  const found = [];
  for (let name = 0; name < size; name++) {
    if (sums.seen[name]) found.push({ name, self: sums.self[name], total: sums.total[name] });
  }
  return found;
}

/** Depth first without recursion: `next[d]` is the bar to enter at depth d, `ends[d]` where its siblings end. */
function walk(flame, root, sums) {
  const next = [root];
  const ends = [root + 1];
  const path = [];
  while (next.length) {
    const depth = next.length - 1;
    if (path.length > depth) sums.open[flame.name[path.pop()]]--;
    if (next[depth] >= ends[depth]) {
      next.pop();
      ends.pop();
      continue;
    }
    const bar = next[depth]++;
    enter(flame, bar, sums);
    path.push(bar);
    next.push(flame.childFrom[bar]);
    ends.push(flame.childUntil[bar]);
  }
}

function enter(flame, bar, sums) {
  const name = flame.name[bar];
  if (bar > 0) {
    sums.seen[name] = 1;
    sums.self[name] += flame.self[bar];
    if (!sums.open[name]) sums.total[name] += flame.total[bar];
  }
  sums.open[name]++;
}

/** Self values by frame kind, for each kind that occurs: {python: …, cuda: …}; the root's own self belongs to no kind. */
export function kindsOf(functions, flame) {
  const sums = {};
  for (const { name, self } of functions) {
    const kind = flame.kinds[name] || "other";
    sums[kind] = (sums[kind] ?? 0) + self;
  }
  return sums;
}

/** Entries sorted by `self` or `total`, largest first; the other value, then names decide between equals, so that rows don't jump. */
export function sortFunctions(functions, key, names) {
  const other = key === "self" ? "total" : "self";
  return [...functions].sort((a, b) => b[key] - a[key] || b[other] - a[other] || (names[a.name] < names[b.name] ? -1 : 1));
}
