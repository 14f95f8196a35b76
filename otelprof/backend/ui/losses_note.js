/**
 * The line over a graph that says how much of a profile was lost, thinned or cut.
 */
import { lossesOf } from "./losses.js";
import { formatShare } from "./units.js";

const SENTENCES = {
  lost: (share) => `${share} of these samples were lost before their stacks could be read`,
  thinned: (share) => `${share} of these samples stand for others that were left out`,
  cut: (share) => `${share} of these samples have stacks that were cut`,
};

/** Shows or hides the line for a graph, null for none; marks are named so that they can be searched. */
export function showLosses(element, flame) {
  const losses = flame?.count ? lossesOf(flame) : [];
  element.hidden = losses.length === 0;
  element.textContent = losses.map(({ word, value, marks }) => {
    return `${SENTENCES[word](formatShare(value, flame.whole))} (${marks.slice(0, 3).join(", ").slice(0, 200)}).`;
  }).join(" ");
}
