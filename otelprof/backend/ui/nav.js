/**
 * The links from page to page: they take the profile type, the selector and the time along.
 */

/** Lets the links point at what is shown: `params` are {type, query, from, until} as they stand in the address. */
export function showPages(params) {
  const search = new URLSearchParams(Object.entries(params).filter(([, value]) => value));
  for (const link of document.querySelectorAll("[data-page]")) link.href = `/${link.dataset.page}?${search}`;
}
