/**
 * Searching in a flame graph: which names match and what share of the values they hold.  Pure.
 */

/**
 * Names and places (`file:line`) that contain a text, upper and lower case alike.
 * `names` has a 1 for each name that matches; `value` counts each stack once however often the text occurs in it; `bars` are the
 * matching bars inside of `root`, in the order of the rows.
 */
export function searchFlame(flame, text, root = 0) {
  const wanted = text.trim().toLowerCase();
  if (!wanted || !flame.count) return null;
  const names = Uint8Array.from(flame.names, (name, i) => Number(holds(name, wanted) || holds(flame.files[i], wanted)));
  return { names, ...measure(flame, names, root) };
}

const holds = (text, wanted) => Boolean(text) && text.toLowerCase().includes(wanted);

/** Outermost matches count, so that recursion counts once. */
function measure(flame, names, root) {
  const inside = new Uint8Array(flame.count);
  const covered = new Uint8Array(flame.count);
  const bars = [];
  let value = 0;
  inside[root] = 1;
  for (let bar = root; bar < flame.count; bar++) {
    const above = flame.parent[bar];
    if (bar !== root && !inside[above]) continue;
    inside[bar] = 1;
    const match = names[flame.name[bar]] && bar > 0;
    if (match) bars.push(bar);
    if (match && !(bar !== root && covered[above])) value += flame.total[bar];
    covered[bar] = match || (bar !== root && covered[above]) ? 1 : 0;
  }
  return { value, bars };
}
