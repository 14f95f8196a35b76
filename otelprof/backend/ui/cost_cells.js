/**
 * What a request or span cost, as cells of a table; each value that isn't zero is a link to its flame graph.
 */
import { formatValue } from "./units.js";

/** The costs: name of the order in the backend, field of its answers, unit, beginning of the profile type's id, words. */
export const COSTS = [
  { order: "cpu", field: "cpu_ns", unit: "nanoseconds", type: "process_cpu:cpu:", words: "CPU" },
  { order: "launches", field: "launches", unit: "count", type: "gpu:gpu_kernel_launches:", words: "Launches" },
  { order: "gpu_time", field: "gpu_time_ns", unit: "nanoseconds", type: "gpu:gpu_kernel_time:", words: "GPU time" },
  { order: "waiting", field: "waiting_ns", unit: "nanoseconds", type: "off_cpu:off_cpu:", words: "Waiting" },
];

/** One cell for each cost; `hrefOf(cost)` is the address of the flame graph, empty where there is none. */
export function costCells(row, hrefOf) {
  return COSTS.map((cost) => {
    const cell = document.createElement("td");
    cell.className = "number";
    const value = row[cost.field] ?? 0;
    cell.append(value > 0 ? linkOf(value, cost, hrefOf(cost)) : "–");
    return cell;
  });
}

function linkOf(value, cost, href) {
  const link = document.createElement(href ? "a" : "span");
  link.textContent = formatValue(value, cost.unit);
  if (href) {
    link.href = href;
    link.title = `Flame graph: ${cost.words}`;
    link.setAttribute("aria-label", `${link.textContent} ${cost.words}: flame graph`);
  }
  return link;
}
