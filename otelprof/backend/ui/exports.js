/**
 * The export menu: the SVG is made here, the other formats come from the backend; a refusal is said, not saved as a file.
 */
import { exportUrl, fetchFile } from "./api.js";

const KEPT = 10_000;

/** Connects the menu; `svg()` gives the document or null, `refused(error)` is told what went wrong. */
export function listenExports({ svg, refused }) {
  document.querySelector("[data-export=svg]").addEventListener("click", () => {
    const text = svg();
    if (text) save(new Blob([text], { type: "image/svg+xml" }), "otelprof-flamegraph.svg");
  });
  for (const link of document.querySelectorAll("a[data-export]")) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      fetchFile(link.href).then(({ blob, name }) => save(blob, name), refused);
    });
  }
}

/** Lets the links point at what is shown: {type, query, from, until}. */
export function showExports(shown) {
  for (const link of document.querySelectorAll("a[data-export]")) link.href = exportUrl(link.dataset.export, shown);
}

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), KEPT);
}
