/**
 * Buttons that open a list.
 */

/** Connects a menu: its first child opens and closes its second one, a list; a click on a command closes it, a choice doesn't. */
export function listenMenu(menu) {
  const [button, list] = menu.children;
  const show = (open) => {
    list.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
  };
  button.addEventListener("click", () => show(list.hidden));
  list.addEventListener("click", (event) => { if (event.target.closest("button, a")) show(false); });
  document.addEventListener("pointerdown", (event) => { if (!menu.contains(event.target)) show(false); });
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || list.hidden) return;
    show(false);
    button.focus();
  });
}
