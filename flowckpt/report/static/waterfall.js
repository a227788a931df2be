"use strict";
// The waterfall of a run: one lane for each step, attempts as bands, idle time between attempts folded.
// The report, the local page and notebooks share it.

class Waterfall {
  constructor(root, data, { select }) {
    this.root = root;
    this.select = select;
    this.take(data);
    this.expanded = new Set();
    this.opened = new Set(); // large groups whose members are shown one by one
    this.isFolded = true;
    this.isClock = false; // the axis shows the time of day in place of the elapsed time
    this.onlyCritical = false;
    this.query = "";
    for (let lane = 0; lane < this.count; lane++) {
      if (this.isGroup(lane) && this.ends[lane] - lane <= Waterfall.LARGE) this.expanded.add(lane);
    }
    this.build();
    this.layOutTime();
    this.fit();
    this.refresh();
  }

  take(data) {
    this.data = data;
    this.lanes = data.lanes;
    this.count = this.lanes.name.length;
    this.unfold();
    this.paths = this.pathsOfLanes();
    this.ends = this.endsOfGroups();
  }

  unfold() { // the data is as short as it can be: a report of 100,000 steps is one file
    let last = 0;
    this.lanes.start = this.lanes.start.map((step) => (step === null ? -1 : (last += step)));
    this.lanes.name = this.lanes.name.map((name) => (typeof name === "number" ? `[${name}]` : name));
    this.critical = new Set();
    const ranges = this.lanes.critical;
    for (let at = 0; at < ranges.length; at += 2) {
      for (let lane = ranges[at]; lane < ranges[at] + ranges[at + 1]; lane++) this.critical.add(lane);
    }
  }

  update(data) { // newer data of the same run: what is open, selected and in view stays
    const pathsOf = (set) => new Set([...set].map((lane) => this.paths[lane]));
    const expanded = pathsOf(this.expanded), opened = pathsOf(this.opened), known = new Set(this.paths);
    const selected = this.selected === undefined ? undefined : this.paths[this.selected];
    const isWhole = this.from === 0 && this.to === this.length;
    this.take(data);
    const lanesOf = (paths) => new Set(this.paths.flatMap((path, lane) => (paths.has(path) ? [lane] : [])));
    this.expanded = lanesOf(expanded);
    this.opened = lanesOf(opened);
    this.paths.forEach((path, lane) => {
      if (!known.has(path) && this.isGroup(lane) && !this.isLarge(lane)) this.expanded.add(lane);
    });
    this.selected = selected === undefined ? undefined : this.paths.lastIndexOf(selected);
    this.layOutTime();
    if (isWhole) this.fit();
    this.refresh();
  }

  grow(ms) { // time passes for the steps that run
    const last = this.data.attempts[this.data.attempts.length - 1];
    if (!last || last.outcome !== "running") return;
    const isWhole = this.from === 0 && this.to === this.length;
    last.end += ms;
    for (let lane = 0; lane < this.count; lane++) {
      if (["running", "waiting"].includes(this.stateOf(lane))) this.lanes.duration[lane] += ms;
    }
    this.layOutTime();
    if (isWhole) this.fit();
    this.redraw();
  }

  static LARGE = 24; // a group with more lanes starts as one lane, then opens into a strip, then into its members

  pathsOfLanes() {
    const outer = [];
    return this.lanes.name.map((name, lane) => {
      const depth = this.lanes.depth[lane];
      outer.length = depth;
      outer.push(name);
      return depth ? outer.join("/") : name;
    });
  }

  endsOfGroups() { // for each lane, the first lane that is not nested in it
    const ends = new Int32Array(this.count);
    const open = [];
    this.firsts = Float64Array.from(this.lanes.start, (start) => (start < 0 ? Infinity : start)); // with what is nested
    for (let lane = 0; lane <= this.count; lane++) {
      const depth = lane < this.count ? this.lanes.depth[lane] : -1;
      while (open.length && this.lanes.depth[open[open.length - 1]] >= depth) {
        const inner = open.pop();
        ends[inner] = lane;
        if (open.length) this.firsts[open[open.length - 1]] = Math.min(this.firsts[open[open.length - 1]], this.firsts[inner]);
      }
      open.push(lane);
    }
    return ends;
  }

  isGroup(lane) { return this.ends[lane] > lane + 1; }
  isLarge(lane) { return this.ends[lane] - lane - 1 > Waterfall.LARGE; }
  stateOf(lane) { return this.data.states[this.lanes.state[lane]]; }
  kindOf(lane) { return this.data.kinds[this.lanes.kind[lane]]; }
  pathOf(lane) { return this.paths[lane]; }

  spanOf(lane) { // start and end in milliseconds; of a group without its own result, those of its members
    let start = this.lanes.start[lane];
    let end = start < 0 ? -1 : start + this.lanes.duration[lane];
    if (start < 0 && this.isGroup(lane)) {
      start = Infinity;
      for (let inner = lane + 1; inner < this.ends[lane]; inner++) {
        const at = this.lanes.start[inner];
        if (at >= 0) { start = Math.min(start, at); end = Math.max(end, at + this.lanes.duration[inner]); }
      }
      if (start === Infinity) start = -1;
    }
    return [start, end];
  }

  // --- the axis of time: pieces that are drawn to scale, and folded pieces of a fixed width between them ---

  layOutTime() {
    const attempts = this.data.attempts;
    const start = attempts.length ? Math.min(...attempts.map((each) => each.start)) : 0;
    const end = attempts.length ? Math.max(...attempts.map((each) => each.end)) : 1;
    const busy = attempts.reduce((sum, each) => sum + Math.max(0, each.end - each.start), 0) || 1;
    this.pieces = [];
    let at = 0;
    const add = (from, to, width, isIdle) => { this.pieces.push({ from, to, at, width, isIdle }); at += width; };
    let last = start;
    for (const each of attempts) {
      const idle = each.start - last;
      if (idle > 0) {
        const isIdle = this.isFolded && idle > 0.1 * busy;
        add(last, each.start, isIdle ? 0.1 * busy : idle, isIdle);
      }
      if (each.end > Math.max(each.start, last)) add(Math.max(each.start, last), each.end, each.end - Math.max(each.start, last), false);
      last = Math.max(last, each.end);
    }
    if (end <= last && !this.pieces.length) add(start, start + 1, 1, false);
    this.length = at;
  }

  axis(time) {
    for (const piece of this.pieces) {
      if (time <= piece.to) {
        const share = piece.to === piece.from ? 0 : Math.max(0, time - piece.from) / (piece.to - piece.from);
        return piece.at + share * piece.width;
      }
    }
    return this.length;
  }

  timeAt(position) {
    for (const piece of this.pieces) {
      if (position <= piece.at + piece.width) {
        return piece.from + ((position - piece.at) / (piece.width || 1)) * (piece.to - piece.from);
      }
    }
    return this.pieces.length ? this.pieces[this.pieces.length - 1].to : 0;
  }

  percent(time) { return ((this.axis(time) - this.from) / (this.to - this.from)) * 100; }

  fit() { this.from = 0; this.to = this.length || 1; }

  zoom(factor, around = 0.5) {
    const width = Math.max((this.to - this.from) * factor, this.length / 1e6);
    const middle = this.from + (this.to - this.from) * around;
    this.show(middle - width * around, width);
  }

  pan(share) { this.show(this.from + share * (this.to - this.from), this.to - this.from); }

  show(from, width) {
    width = Math.min(width, this.length);
    this.from = Math.max(0, Math.min(from, this.length - width));
    this.to = this.from + width;
    this.redraw();
  }

  // --- rows: a lane, or the strip of a large group ---

  refresh() {
    this.visible = [];
    const query = this.query.toLowerCase();
    for (let lane = 0; lane < this.count; lane++) {
      const isFound = query && this.pathOf(lane).toLowerCase().includes(query);
      if (query) { if (isFound) this.visible.push({ lane, isStrip: false }); continue; }
      if (this.onlyCritical && !this.critical.has(lane)) continue;
      this.visible.push({ lane, isStrip: false });
      if (!this.isGroup(lane)) continue;
      if (!this.expanded.has(lane)) { lane = this.ends[lane] - 1; continue; }
      if (this.isLarge(lane)) {
        this.visible.push({ lane, isStrip: true });
        if (!this.opened.has(lane) && !this.onlyCritical) lane = this.ends[lane] - 1;
      }
    }
    this.rows.setCount(this.visible.length);
    this.counter.textContent = query
      ? `${this.visible.length.toLocaleString("en")} of ${this.count.toLocaleString("en")} lanes`
      : `${this.count.toLocaleString("en")} lane${this.count === 1 ? "" : "s"}`;
    this.redraw();
  }

  redraw() { this.drawRuler(); this.drawLegend(); this.rows.redraw(); }

  build() {
    this.root.replaceChildren();
    const tools = element("div", "bar-of-tools");
    tools.setAttribute("role", "toolbar");
    tools.setAttribute("aria-label", "Waterfall");
    const button = (text, title, action) => {
      const made = element("button", "", text);
      made.type = "button";
      made.title = title;
      made.setAttribute("aria-label", title);
      made.addEventListener("click", () => action(made));
      tools.append(made);
      return made;
    };
    button("+", "Zoom in (key +)", () => this.zoom(0.5));
    button("−", "Zoom out (key -)", () => this.zoom(2));
    button("Fit", "Show everything (key 0)", () => { this.fit(); this.redraw(); });
    const clock = button("Wall clock", "Show the time of day on the axis, in UTC", () => {
      this.isClock = !this.isClock;
      clock.setAttribute("aria-pressed", String(this.isClock));
      this.redraw();
    });
    clock.setAttribute("aria-pressed", "false");
    const folding = button("Fold idle time", "Fold the idle time between attempts", () => {
      this.isFolded = !this.isFolded;
      folding.setAttribute("aria-pressed", String(this.isFolded));
      this.layOutTime(); this.fit(); this.redraw();
    });
    folding.setAttribute("aria-pressed", "true");
    const critical = button("Critical path", "Show only the critical path", () => {
      this.onlyCritical = !this.onlyCritical;
      critical.setAttribute("aria-pressed", String(this.onlyCritical));
      this.refresh();
    });
    critical.setAttribute("aria-pressed", "false");
    const search = element("input");
    search.type = "search";
    search.placeholder = "Search steps";
    search.setAttribute("aria-label", "Search steps");
    search.addEventListener("input", () => { this.query = search.value.trim(); this.refresh(); });
    this.counter = element("span", "count");
    this.counter.setAttribute("role", "status");
    tools.append(search, this.counter);
    this.ruler = element("div", "ruler");
    this.ruler.setAttribute("aria-hidden", "true");
    const frame = element("div");
    this.axisName = element("div", "axis-name");
    const top = element("div", "top");
    top.append(this.axisName, this.ruler);
    this.legendList = element("ul", "legend");
    this.hint = element("p", "hint"); // of the lane under the pointer or with the focus
    this.root.append(tools, top, frame, this.hint, this.legendList);
    this.rows = new Rows(frame, {
      height: 24, role: "treegrid", label: "Waterfall of the steps",
      draw: (row, index) => this.drawRow(row, index),
      choose: (index, event) => this.choose(index, event),
      key: (event, index) => this.onKey(event, index),
    });
    const explain = (event) => {
      const row = event.target.closest(".row");
      if (row) this.hint.textContent = row.title;
    };
    for (const each of ["focusin", "pointerover"]) frame.addEventListener(each, explain);
    const wheel = (event) => {
      if (!(event.ctrlKey || event.metaKey || event.shiftKey)) return;
      event.preventDefault();
      const box = this.ruler.getBoundingClientRect();
      if (event.shiftKey) this.pan(Math.sign(event.deltaY || event.deltaX) * 0.1);
      else this.zoom(event.deltaY > 0 ? 1.25 : 0.8, Math.max(0, Math.min(1, (event.clientX - box.left) / box.width)));
    };
    for (const each of [this.ruler, frame]) each.addEventListener("wheel", wheel, { passive: false });
    this.ruler.addEventListener("pointerdown", (event) => {
      this.ruler.setPointerCapture(event.pointerId);
      let last = event.clientX;
      const move = (each) => { this.pan((last - each.clientX) / this.ruler.clientWidth); last = each.clientX; };
      this.ruler.addEventListener("pointermove", move);
      this.ruler.addEventListener("pointerup", () => this.ruler.removeEventListener("pointermove", move), { once: true });
    });
  }

  drawLegend() {
    this.legendList.replaceChildren();
    const add = (classes, text) => {
      const item = element("li"), sample = element("span", "sample");
      sample.append(element("span", `bar ${classes}`));
      item.append(sample, element("span", "", text));
      this.legendList.append(item);
    };
    const used = new Set(this.lanes.state);
    this.data.states.forEach((state, index) => {
      if (used.has(index)) add(classOf(state), Waterfall.MEANING[state] || state);
    });
    if (this.lanes.kind.some((_, lane) => this.isEndedWait(lane))) add("executed waited", "a wait that ended");
    if (this.critical.size) add("on-critical", "critical path");
  }

  isEndedWait(lane) {
    return Waterfall.WAITS.has(this.kindOf(lane)) && ["executed", "restored"].includes(this.stateOf(lane));
  }

  static WAITS = new Set(["wait", "sleep", "approval"]);

  static MEANING = {
    executed: "executed by the latest attempt", restored: "restored from an earlier attempt", failed: "✕ failed", stopped: "■ stopped, as enough of its group had succeeded",
    "left behind": "result no longer counts", interrupted: "✕ interrupted by a crash or a stop", unsaved: "○ ended, its result is not saved", running: "running",
    waiting: "waiting", undone: "⟲ executed, then undone", undo: "undoes a step",
  };

  drawRuler() {
    this.ruler.replaceChildren();
    const place = (made, from, to) => {
      const left = this.percent(from), right = this.percent(to);
      if (right < 0 || left > 100) return;
      made.style.left = `${left}%`;
      if (to !== from) made.style.width = `${Math.max(right - left, 0)}%`;
      this.ruler.append(made);
    };
    for (const each of this.data.attempts) {
      const band = element("div", `band ${classOf(each.outcome)}`, `attempt ${each.number}`);
      const ended = each.outcome === "crashed" ? "crashed, last heartbeat" : each.outcome;
      band.title = `attempt ${each.number}: ${ended} after ${durationText(each.end - each.start)}`;
      place(band, each.start, each.end);
    }
    for (const piece of this.pieces.filter((each) => each.isIdle)) {
      const idle = element("div", "idle", `⋯ ${durationText(piece.to - piece.from)}`);
      idle.title = `idle for ${durationText(piece.to - piece.from)}`;
      place(idle, piece.from, piece.to);
    }
    this.drawTicks(place);
    const hasFold = this.pieces.some((each) => each.isIdle);
    this.axisName.textContent = this.isClock ? "wall clock, UTC" : hasFold ? "elapsed, without idle time" : "elapsed";
  }

  drawTicks(place) {
    const step = Waterfall.stepOf((this.to - this.from) / 8);
    const days = new Set(this.data.attempts.flatMap((each) => [each.start, each.end]).map((time) => this.clockText(time, 864e5)));
    let elapsed = 0, day = ""; // elapsed time counts what is drawn to scale
    for (const piece of this.pieces.filter((each) => !each.isIdle)) {
      const first = piece.from + Math.max(0, this.from - piece.at), last = piece.from + Math.min(piece.width, this.to - piece.at);
      const origin = this.isClock ? -this.data.epoch : piece.from - elapsed; // where the ticks would start at zero
      for (let tick = Math.ceil((first - origin) / step) * step; origin + tick <= last; tick += step) {
        const time = origin + tick;
        let text = this.isClock ? this.clockText(time, step) : durationText(Math.round(tick));
        if (this.isClock && days.size > 1 && step < 864e5 && this.clockText(time, 864e5) !== day) {
          day = this.clockText(time, 864e5);
          text = `${day} ${text}`;
        }
        place(element("div", "tick", text), time, time);
      }
      elapsed += piece.to - piece.from;
    }
  }

  clockText(time, step) { // as exact as the distance of the ticks asks for
    const text = new Date(this.data.epoch + time).toISOString();
    if (step >= 864e5) return text.slice(0, 10);
    return text.slice(11, step >= 6e4 ? 16 : step >= 1e3 ? 19 : 23);
  }

  static stepOf(least) {
    for (const unit of [1, 1e3, 6e4, 36e5, 864e5]) {
      for (const factor of unit === 1 || unit === 1e3 ? [1, 2, 5, 10, 20, 30, 50, 100, 200, 500] : [1, 2, 5, 10, 15, 30]) {
        if (unit * factor >= least) return unit * factor;
      }
    }
    return Math.ceil(least / 864e5) * 864e5;
  }

  drawRow(row, index) {
    const { lane, isStrip } = this.visible[index];
    const depth = this.lanes.depth[lane] + (isStrip ? 1 : 0);
    const name = element("span", "name");
    name.setAttribute("role", "gridcell");
    name.style.paddingLeft = `${depth * 14}px`;
    const track = element("span", "track");
    track.setAttribute("role", "gridcell");
    row.setAttribute("aria-level", String(depth + 1));
    if (lane === this.selected && !isStrip) row.setAttribute("aria-selected", "true");
    for (const piece of this.pieces.filter((each) => each.isIdle)) {
      const left = this.percent(piece.from), right = this.percent(piece.to);
      if (right < 0 || left > 100) continue;
      const gap = element("span", "gap");
      gap.style.left = `${left}%`;
      gap.style.width = `${right - left}%`;
      track.append(gap);
    }
    const isOpen = isStrip ? this.opened.has(lane) : this.expanded.has(lane);
    if (isStrip || this.isGroup(lane)) {
      row.setAttribute("aria-expanded", String(isOpen));
      name.append(element("span", "toggle", isOpen ? "▾" : "▸"));
    } else {
      name.append(element("span", "toggle", ""));
    }
    if (isStrip) {
      const members = this.directMembers(lane);
      name.append(`${members.toLocaleString("en")} members`);
      const counts = this.drawStrip(track, lane);
      row.title = `${members} members of ${this.pathOf(lane)}${counts ? `: ${counts}` : ""}`;
      row.setAttribute("aria-label", row.title);
    } else {
      name.append(this.query ? this.pathOf(lane) : this.lanes.name[lane]);
      row.classList.toggle("found", Boolean(this.query));
      row.classList.toggle("critical", this.critical.has(lane));
      this.drawBar(track, lane);
      row.title = this.describe(lane);
      row.setAttribute("aria-label", row.title);
    }
    row.append(name, track);
  }

  describe(lane) {
    const parts = [this.pathOf(lane), this.stateOf(lane)];
    const [start, end] = this.spanOf(lane);
    if (start >= 0) parts.push(this.timeText(lane, end - start));
    if (this.lanes.attempt[lane]) parts.push(`attempt ${this.lanes.attempt[lane]}`);
    if (this.lanes.tries[lane]) parts.push(`${this.lanes.tries[lane]} tries`);
    if (this.critical.has(lane)) parts.push("on the critical path");
    return parts.join(", ");
  }

  timeText(lane, ms) { // the record does not say when a step started that has no result
    const state = this.stateOf(lane);
    if (state === "waiting") return `since ${new Date(this.data.epoch + this.lanes.start[lane]).toISOString().slice(0, 19).replace("T", " ")} UTC`;
    if (state === "unsaved") return "for an unknown time";
    if (this.isGroup(lane) || !["interrupted", "running"].includes(state)) return durationText(ms);
    if (!ms) return "for an unknown time";
    const attempt = this.data.attempts.find((each) => each.number === this.lanes.attempt[lane]);
    const isCrash = state === "interrupted" && attempt && attempt.outcome === "crashed";
    return `about ${durationText(ms)}${isCrash ? " until the last heartbeat" : ""}`;
  }

  drawBar(track, lane) {
    const [start, end] = this.spanOf(lane);
    const state = this.stateOf(lane);
    const left = start < 0 ? 0 : this.percent(start), right = start < 0 ? 0 : this.percent(end);
    if (start > this.firsts[lane]) { // an earlier attempt executed members of this group
      const reach = element("span", "reach"), first = this.percent(this.firsts[lane]);
      reach.style.left = `${first}%`;
      reach.style.width = `${Math.max(0, left - first)}%`;
      track.append(reach);
    }
    if (start >= 0 && right >= 0 && left <= 100) {
      const bar = element("span", `bar ${classOf(state)}${this.isGroup(lane) ? " group" : ""}${this.isEndedWait(lane) ? " waited" : ""}`);
      bar.style.left = `min(${left}%, 100% - 4px)`; // a step at the very end is seen, too
      bar.style.width = `${Math.max(0, right - left)}%`;
      track.append(bar);
    }
    const marks = [];
    if (state === "failed") marks.push("✕");
    if (state === "interrupted") marks.push("✕ interrupted");
    if (state === "unsaved") marks.push("○ not saved");
    if (state === "stopped") marks.push("■");
    if (state === "undone") marks.push("⟲ undone");
    if (state === "undo") marks.push("⟲ undo");
    if (this.lanes.tries[lane]) marks.push(`↻ ${this.lanes.tries[lane]}`);
    if (start < 0) marks.push(this.lanes.attempt[lane] ? "" : "copied from another run");
    const text = marks.filter(Boolean).join(" ");
    if (text) {
      const mark = element("span", `mark${state === "failed" || state === "interrupted" ? " failed" : ""}`, text);
      if (right <= 85) mark.style.left = `${Math.max(0, right)}%`;
      else if (left >= 15) mark.style.right = `${Math.max(0, 100 - left)}%`;
      else mark.classList.add("inside");
      track.append(mark);
    }
  }

  directMembers(lane) {
    let members = 0;
    for (let inner = lane + 1; inner < this.ends[lane]; inner++) {
      members += this.lanes.depth[inner] === this.lanes.depth[lane] + 1 && this.stateOf(inner) !== "left behind";
    }
    return members;
  }

  drawStrip(track, lane) { // how many members ran at each moment: executed ones solid, restored ones hatched above them
    const canvas = element("canvas", "strip");
    const width = 600, height = 20;
    canvas.width = width;
    canvas.height = height;
    const executed = new Float64Array(width + 1), restored = new Float64Array(width + 1), failed = new Uint8Array(width + 1);
    const counts = { executed: 0, restored: 0, failed: 0 };
    for (let inner = lane + 1; inner < this.ends[lane]; inner++) {
      const start = this.lanes.start[inner];
      if (start < 0 || this.isGroup(inner)) continue;
      const state = this.stateOf(inner);
      if (state in counts) counts[state] += 1;
      const left = Math.floor((this.percent(start) / 100) * width);
      const right = Math.ceil((this.percent(start + this.lanes.duration[inner]) / 100) * width);
      if (right < 0 || left > width) continue;
      const running = state === "restored" ? restored : executed;
      running[Math.max(0, left)] += 1;
      running[Math.min(width, Math.max(left + 1, right))] -= 1;
      if (state === "failed") failed[Math.max(0, Math.min(width - 1, left))] = 1;
    }
    let most = 1;
    for (let x = 0, sum = 0; x < width; x++) { sum += executed[x] + restored[x]; most = Math.max(most, sum); }
    const colors = getComputedStyle(this.root);
    const brush = canvas.getContext("2d");
    const stripes = Waterfall.stripes(brush, colors.getPropertyValue("--restored"));
    for (let x = 0, solid = 0, hatched = 0; x < width; x++) {
      solid += executed[x];
      hatched += restored[x];
      const foot = solid && Math.max(2, (solid / most) * height), head = hatched && Math.max(4, (hatched / most) * height);
      brush.fillStyle = colors.getPropertyValue("--executed");
      brush.fillRect(x, height - foot, 1, foot);
      brush.fillStyle = stripes;
      brush.fillRect(x, Math.max(0, height - foot - head), 1, head);
    }
    brush.fillStyle = colors.getPropertyValue("--failed");
    for (let x = 0; x < width; x++) {
      if (failed[x]) { brush.fillRect(x - 1, 0, 3, 6); brush.fillRect(x, 0, 1, height); }
    }
    track.append(canvas);
    return Object.entries(counts).filter(([, count]) => count).map(([state, count]) => `${count.toLocaleString("en")} ${state}`).join(", ");
  }

  static stripes(brush, color) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const line = tile.getContext("2d");
    line.strokeStyle = color;
    line.lineWidth = 2;
    line.beginPath();
    for (const shift of [-6, 0, 6]) { line.moveTo(shift, 6); line.lineTo(shift + 6, 0); }
    line.stroke();
    return brush.createPattern(tile, "repeat");
  }

  // --- choosing, opening, keys ---

  choose(index, event) {
    const { lane, isStrip } = this.visible[index];
    const isToggle = event && event.target.classList && event.target.classList.contains("toggle");
    if (isStrip || (isToggle && this.isGroup(lane))) { this.toggle(lane, isStrip); return; }
    this.selected = lane;
    this.rows.redraw();
    this.rows.activate(index);
    this.select(lane);
  }

  toggle(lane, isStrip, isOpen) {
    const set = isStrip ? this.opened : this.expanded;
    const opens = isOpen === undefined ? !set.has(lane) : isOpen;
    if (opens) set.add(lane); else set.delete(lane);
    const before = this.rows.active;
    this.refresh();
    this.rows.activate(before);
  }

  reveal(lane) { // open whatever hides a lane, and select it
    this.query = "";
    this.onlyCritical = false;
    for (let outer = lane - 1, depth = this.lanes.depth[lane]; outer >= 0 && depth > 0; outer--) {
      if (this.lanes.depth[outer] < depth) { depth = this.lanes.depth[outer]; this.expanded.add(outer); this.opened.add(outer); }
    }
    this.refresh();
    const index = this.visible.findIndex((each) => each.lane === lane && !each.isStrip);
    if (index >= 0) this.choose(index);
  }

  onKey(event, index) {
    const { lane, isStrip } = this.visible[index];
    const isOpen = isStrip ? this.opened.has(lane) : this.expanded.has(lane);
    if (event.key === "ArrowRight" && event.shiftKey) this.pan(0.2);
    else if (event.key === "ArrowLeft" && event.shiftKey) this.pan(-0.2);
    else if (event.key === "ArrowRight") {
      if ((isStrip || this.isGroup(lane)) && !isOpen) this.toggle(lane, isStrip, true);
      else this.rows.activate(index + 1);
    } else if (event.key === "ArrowLeft") {
      if ((isStrip || this.isGroup(lane)) && isOpen) this.toggle(lane, isStrip, false);
      else {
        let outer = index - 1;
        while (outer > 0 && this.lanes.depth[this.visible[outer].lane] >= this.lanes.depth[lane]) outer--;
        this.rows.activate(Math.max(0, outer));
      }
    } else if (event.key === "+" || event.key === "=") this.zoom(0.5);
    else if (event.key === "-") this.zoom(2);
    else if (event.key === "0") { this.fit(); this.redraw(); this.rows.activate(index); }
    else return false;
    return true;
  }
}

function classOf(state) { return state.replace(" ", "-"); }
