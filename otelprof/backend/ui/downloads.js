/**
 * Giving a file to the person in front of the page.
 */

const KEPT = 10_000;

/** Offers a blob as a download with a name. */
export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), KEPT);
}
