/**
 * News from the backend (`/api/v1/live`, server-sent events) and the pace at which the page follows them.
 *
 * The stream is read with fetch: an EventSource can't send a token.
 */
import { openNews } from "./api.js";

const AGAIN_AFTER = 3000;
const LONGEST_LINE = 10_000;

/** Tells `data` (something was stored) and `status` (detail: live, lost). */
export class LiveFeed extends EventTarget {
  #abort = null;
  #timer = 0;

  start() {
    if (this.#abort) return;
    clearTimeout(this.#timer);
    this.#abort = new AbortController();
    this.#follow(this.#abort.signal);
  }

  stop() {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    this.#abort = null;
  }

  async #follow(signal) {
    try {
      const news = await openNews(signal);
      this.#say("live");
      await this.#read(news.pipeThrough(new TextDecoderStream()).getReader());
    } catch {
      // Silence and refusals end alike: it is said, and tried again.
    }
    if (!signal.aborted) this.#lost();
  }

  async #read(reader) {
    let rest = "";
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const lines = `${rest}${part.value}`.split("\n");
      rest = lines.pop().slice(-LONGEST_LINE);
      if (lines.some((line) => line.startsWith("data:"))) this.dispatchEvent(new Event("data"));
    }
  }

  #lost() {
    this.stop();
    this.#say("lost");
    this.#timer = setTimeout(() => this.start(), AGAIN_AFTER);
  }

  #say(status) {
    this.dispatchEvent(new CustomEvent("status", { detail: status }));
  }
}

/**
 * Runs a task at most once at a time and not more often than it can bear: between two runs lie `gap` milliseconds or three
 * times what the last one took.  Wishes in between become one run.
 */
export class Pace {
  #task;
  #gap;
  #timer = 0;
  #running = false;
  #wanted = false;
  #next = 0;

  constructor(task, gap) {
    this.#task = task;
    this.#gap = gap;
  }

  /** Asks for a run, when it is due. */
  wish() {
    this.#wanted = true;
    if (this.#running || this.#timer) return;
    this.#timer = setTimeout(() => this.#run(), Math.max(0, this.#next - performance.now()));
  }

  async #run() {
    this.#timer = 0;
    this.#wanted = false;
    this.#running = true;
    const begin = performance.now();
    try {
      await this.#task();
    } finally {
      this.#running = false;
      this.#next = begin + Math.max(this.#gap, 3 * (performance.now() - begin));
      if (this.#wanted) this.wish();
    }
  }
}
