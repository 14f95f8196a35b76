/**
 * News from the backend (`/api/v1/live`, server-sent events) and the pace at which the page follows them.
 */

const AGAIN_AFTER = 5000;

/** Tells `data` (something was stored) and `status` (detail: live, lost). */
export class LiveFeed extends EventTarget {
  #source = null;
  #timer = 0;

  start() {
    if (this.#source) return;
    clearTimeout(this.#timer);
    this.#source = new EventSource("/api/v1/live");
    this.#source.addEventListener("open", () => this.#say("live"));
    this.#source.addEventListener("error", () => this.#lost());
    this.#source.addEventListener("data", () => this.dispatchEvent(new Event("data")));
  }

  stop() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }

  /** The browser tries again by itself, except where the server refused. */
  #lost() {
    this.#say("lost");
    if (this.#source?.readyState !== EventSource.CLOSED) return;
    this.stop();
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
