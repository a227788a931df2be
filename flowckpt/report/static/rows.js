"use strict";
// A scrolled list of any length: only the rows that can be seen exist in the page.

class Rows {
  // `draw(element, index)` fills a row; `choose(index)` is called when a row is clicked or Enter is pressed on it.
  constructor(frame, { height, draw, choose, key, label, role }) {
    this.frame = frame;
    this.height = height;
    this.draw = draw;
    this.choose = choose;
    this.key = key;
    this.count = 0;
    this.active = 0;
    this.drawn = new Map();
    frame.classList.add("rows");
    frame.setAttribute("role", role);
    frame.setAttribute("aria-label", label);
    this.space = document.createElement("div");
    this.space.className = "space";
    this.space.setAttribute("role", "rowgroup");
    frame.append(this.space);
    frame.addEventListener("scroll", () => this.update(), { passive: true });
    frame.addEventListener("keydown", (event) => this.onKey(event));
    this.space.addEventListener("click", (event) => {
      const row = event.target.closest(".row");
      if (row) { this.activate(Number(row.dataset.index), false); this.choose(this.active, event); }
    });
    this.space.addEventListener("focusin", (event) => { // a screen reader may give any row the focus
      const row = event.target.closest(".row");
      if (row && Number(row.dataset.index) !== this.active) this.activate(Number(row.dataset.index), false);
    });
    new ResizeObserver(() => this.redraw()).observe(frame);
  }

  setCount(count) {
    this.count = count;
    this.active = Math.min(this.active, Math.max(0, count - 1));
    this.frame.setAttribute("aria-rowcount", String(count));
    this.space.style.height = `${count * this.height}px`;
    this.frame.style.height = `${count * this.height + 2}px`; // the stylesheet limits it
    this.redraw();
  }

  redraw() {
    const hasFocus = this.space.contains(document.activeElement);
    for (const element of this.drawn.values()) element.remove();
    this.drawn.clear();
    this.update();
    if (hasFocus && this.drawn.has(this.active)) this.drawn.get(this.active).focus({ preventScroll: true });
  }

  update() {
    const first = Math.max(0, Math.floor(this.frame.scrollTop / this.height) - 5);
    const last = Math.min(this.count, Math.ceil((this.frame.scrollTop + this.frame.clientHeight) / this.height) + 5);
    for (const [index, element] of this.drawn) {
      if (index < first || index >= last) { element.remove(); this.drawn.delete(index); }
    }
    for (let index = first; index < last; index++) {
      if (this.drawn.has(index)) continue;
      const element = document.createElement("div");
      element.className = "row";
      element.dataset.index = String(index);
      element.setAttribute("role", "row");
      element.setAttribute("aria-rowindex", String(index + 1));
      element.style.top = `${index * this.height}px`;
      element.style.height = `${this.height}px`;
      element.tabIndex = index === this.active ? 0 : -1;
      this.draw(element, index);
      this.drawn.set(index, element);
      this.space.append(element);
    }
  }

  activate(index, hasFocus = true) {
    if (this.count === 0) return;
    const old = this.drawn.get(this.active);
    if (old) old.tabIndex = -1;
    this.active = Math.max(0, Math.min(this.count - 1, index));
    const top = this.active * this.height;
    if (top < this.frame.scrollTop) this.frame.scrollTop = top;
    const bottom = top + this.height - this.frame.clientHeight;
    if (bottom > this.frame.scrollTop) this.frame.scrollTop = bottom;
    this.update();
    const element = this.drawn.get(this.active);
    if (element) { element.tabIndex = 0; if (hasFocus) element.focus({ preventScroll: true }); }
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !event.target.closest(".row")) return;
    const page = Math.max(1, Math.floor(this.frame.clientHeight / this.height) - 1);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -this.count, End: this.count };
    if (event.key in moves && !event.shiftKey) this.activate(this.active + moves[event.key]);
    else if (event.key === "Enter" || event.key === " ") this.choose(this.active, event);
    else if (!this.key || !this.key(event, this.active)) return;
    event.preventDefault();
  }
}

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function durationText(ms) {
  if (ms < 1000) return `${ms < 10 ? Number(ms.toFixed(1)) : Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${String(Math.floor(seconds % 60)).padStart(2, "0")} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${String(minutes % 60).padStart(2, "0")} min`;
  return `${Math.round(hours / 24)} days`;
}
