/**
 * What a profile says about itself: marks such as `[lost: ring full]` are samples without a stack, `[truncated]` are cut ones.  Pure.
 */
import { functionsOf } from "./functions.js";

const MEANINGS = [
  { begin: "[lost", word: "lost" },
  { begin: "[thinned", word: "thinned" },
  { begin: "[truncated", word: "cut" },
];

/** Values under marks of a loss: [{word, value, marks}], those that occur; `marks` are the marks themselves. */
export function lossesOf(flame) {
  const marks = functionsOf(flame).filter(({ name }) => flame.kinds[name] === "mark");
  return MEANINGS.map(({ begin, word }) => {
    const own = marks.filter(({ name }) => flame.names[name].startsWith(begin));
    return { word, value: own.reduce((sum, { total }) => sum + total, 0), marks: own.map(({ name }) => flame.names[name]) };
  }).filter(({ value }) => value > 0);
}
