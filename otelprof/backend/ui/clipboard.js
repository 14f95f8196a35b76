/**
 * Copying text, and saying so to those who see and to those who listen.
 */

const SHOWN = 1800;
let timer = 0;

/** Puts a text on the clipboard; where the browser keeps that from pages without TLS, by way of a selection. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copySelected(text);
  }
  announce(`Copied ${text.slice(0, 200)}`, true);
}

function copySelected(text) {
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "hidden-text";
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

/** Tells screen readers; `visible` shows it for a moment as well. */
export function announce(text, visible = false) {
  const place = document.getElementById("announce");
  if (place.textContent !== text) place.textContent = text;
  clearTimeout(timer);
  place.classList.toggle("seen", visible);
  if (visible) timer = setTimeout(() => place.classList.remove("seen"), SHOWN);
}
