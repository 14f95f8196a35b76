/**
 * The export menu: SVG and PNG are made here, the other formats come from the backend; a refusal is said, not saved as a file.
 */
import { exportUrl, fetchFile } from "./api.js";
import { save } from "./downloads.js";

/** Connects the menu; `svg()` gives a document, `png()` a promise of a picture, or null; `refused(error)` is told what went wrong. */
export function listenExports({ svg, png, refused }) {
  document.querySelector("[data-export=svg]").addEventListener("click", () => {
    const text = svg();
    if (text) save(new Blob([text], { type: "image/svg+xml" }), "otelprof-flamegraph.svg");
  });
  document.querySelector("[data-export=png]").addEventListener("click", async () => {
    const picture = await png();
    if (picture) save(picture, "otelprof-flamegraph.png");
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
