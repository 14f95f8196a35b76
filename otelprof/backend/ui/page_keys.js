/**
 * What every page does alike: `/` goes to the search, and the colours follow the system's theme.
 */
import { readPalette } from "./palette.js";

/** `/` outside of fields puts the focus into the search. */
export function listenSearchKey(search) {
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.closest("input, select, textarea")) return;
    event.preventDefault();
    search.focus();
    search.select();
  });
}

/** The palette of the theme that holds now. */
export const currentPalette = () => readPalette(getComputedStyle(document.documentElement));

/** Tells a new palette when the system changes from dark to light or back. */
export function listenTheme(change) {
  matchMedia("(prefers-color-scheme: light)").addEventListener("change", () => change(currentPalette()));
}
