/**
 * Profile type ids (`NAME:TYPE:UNIT:PERIODTYPE:PERIODUNIT`) and the titles that people read instead of them.  Pure.
 */

const TITLES = {
  "process_cpu:cpu": "CPU time",
  "off_cpu:off_cpu": "Off-CPU time",
  "gpu:gpu_kernel_time": "GPU kernel time",
  "gpu:gpu_time_bound": "GPU time, upper bound",
  "gpu:gpu_kernel_launches": "GPU kernel launches",
  "gpu:gpu_launch_time": "CPU time of launch calls",
  "gpu:gpu_graph_kernels": "Kernels in graph replays",
  "gpu:gpu_memcpy": "GPU copies, bytes",
  "gpu:gpu_memcpy_time": "GPU copies, time",
  "gpu:gpu_sync": "Waits for the GPU",
  "gpu:gpu_idle": "GPU idle time",
  "gpu:gpu_memory_reserved": "GPU memory reserved",
};
const ORDER = Object.keys(TITLES);
const DEFAULT = "process_cpu:cpu";

const key = (id) => id.split(":").slice(0, 2).join(":");

/** The unit that an id names. */
export function unitOf(id) {
  return id.split(":")[2] ?? "";
}

/** A title for people; ids that are not in the table are made readable from their own words. */
export function titleOf(id) {
  const known = TITLES[key(id)];
  if (known) return known;
  const [name = "", type = ""] = id.split(":");
  const words = (type || name).replaceAll("_", " ");
  const title = words.charAt(0).toUpperCase() + words.slice(1);
  return name && name !== type ? `${title} (${name})` : title;
}

/** The heading under which a type stands in the picker. */
export function groupOf(id) {
  if (id.startsWith("gpu:")) return "GPU";
  return /^(process_cpu|off_cpu|wall):/.test(id) ? "CPU" : "Other";
}

/** Ids in the order of the picker: as in the table above, then by name. */
export function sortTypes(ids) {
  const place = (id) => (ORDER.includes(key(id)) ? ORDER.indexOf(key(id)) : ORDER.length);
  return [...ids].sort((a, b) => place(a) - place(b) || a.localeCompare(b));
}

/** The type that is shown when the address names none: CPU time when it is there. */
export function defaultType(ids) {
  return ids.find((id) => key(id) === DEFAULT) ?? sortTypes(ids)[0] ?? "";
}
