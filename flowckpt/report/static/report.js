"use strict";
// The page of a run: the waterfall, the details of a step, the table of steps, and the graph, all of one block of data.

const runPage = (function () {
  let data = JSON.parse(document.getElementById("run-data").textContent);
  const detail = document.getElementById("detail");
  const waterfall = new Waterfall(document.getElementById("waterfall"), data, { select: showDetail });
  const steps = document.getElementById("steps"); // the output of a notebook's cell shows the waterfall alone
  const refreshSteps = steps ? showSteps(steps) : () => {};
  linkGraph(document.getElementById("graph"));
  return { update, grow: (ms) => waterfall.grow(ms) };

  function update(newer) { // a live page shows the same run a moment later
    data = newer;
    waterfall.update(newer);
    refreshSteps();
  }

  function showDetail(lane) {
    const known = data.details[lane] || {};
    const lanes = data.lanes;
    detail.replaceChildren();
    detail.hidden = false;
    const close = element("button", "close", "Close");
    close.type = "button";
    close.addEventListener("click", () => { detail.hidden = true; });
    detail.append(close, element("h3", "", waterfall.pathOf(lane)));
    const list = element("dl");
    const add = (name, value) => {
      if (value === undefined || value === "") return;
      const shown = element("dd");
      shown.append(element("code", "", String(value)));
      list.append(element("dt", "", name), shown);
    };
    add("result", waterfall.stateOf(lane));
    add("type", waterfall.kindOf(lane));
    if (lanes.start[lane] >= 0) {
      add("started", new Date(data.epoch + lanes.start[lane]).toISOString().replace("T", " ").replace("Z", " UTC"));
      add("took", waterfall.timeText(lane, lanes.duration[lane]));
    }
    add("attempt", lanes.attempt[lane] || undefined);
    add("tries", lanes.tries[lane]);
    for (const name of ["function", "version", "location", "marks", "error"]) add(name, known[name]);
    for (const [name, value] of Object.entries(known.figures || {})) add(`figure ${name}`, value);
    for (const [name, value] of Object.entries(known.arguments || {})) add(`argument ${name}`, value);
    for (const [claim, verdict, why] of known.claims || []) add(`claim: ${claim}`, why ? `${verdict}: ${why}` : verdict || "not checked");
    const isLong = known.output && known.output.length > 200;
    if (!isLong) add("output", known.output);
    add("exit code", known["exit code"]);
    detail.append(list);
    for (const [title, text] of [["Output", isLong && known.output], ["Standard output", known.stdout], ["Standard error", known.stderr], ["Traceback", known.traceback]]) {
      if (!text) continue;
      const shown = element("pre", "", text);
      shown.tabIndex = 0;
      detail.append(element("h4", "", title), shown);
    }
    detail.dispatchEvent(new CustomEvent("shown", { detail: { path: waterfall.pathOf(lane) } })); // a page may add actions
  }

  function showSteps(root) {
    const columns = [
      ["Step", (lane) => waterfall.pathOf(lane), ""],
      ["Type", (lane) => waterfall.kindOf(lane), "optional"],
      ["Result", (lane) => waterfall.stateOf(lane) + (data.lanes.tries[lane] ? `, ${data.lanes.tries[lane]} tries` : ""), ""],
      ["Time", (lane) => data.lanes.duration[lane], ""],
      ["Started", (lane) => data.lanes.start[lane], "optional"],
      ["Attempt", (lane) => data.lanes.attempt[lane], "optional"],
    ];
    let all = [], shown = [], sorted = -1, isDescending = false;
    root.classList.add("steps");
    const tools = element("div", "bar-of-tools");
    const search = element("input");
    search.type = "search";
    search.placeholder = "Filter steps";
    search.setAttribute("aria-label", "Filter steps");
    const chooser = element("select");
    chooser.setAttribute("aria-label", "Result");
    chooser.append(new Option("any result", ""), ...data.states.map((state) => new Option(state)));
    const counter = element("span", "count");
    counter.setAttribute("role", "status");
    tools.append(search, chooser, counter);
    const head = element("div", "head");
    columns.forEach(([title, , className], index) => {
      const button = element("button", className, title);
      button.type = "button";
      button.addEventListener("click", () => {
        isDescending = sorted === index ? !isDescending : index === 3;
        sorted = index;
        head.querySelectorAll("button").forEach((each, at) => {
          each.textContent = columns[at][0] + (at === sorted ? (isDescending ? " ▼" : " ▲") : "");
        });
        refresh();
      });
      head.append(button);
    });
    const frame = element("div");
    root.append(tools, head, frame);
    const rows = new Rows(frame, {
      height: 26, role: "grid", label: "Steps", choose: (index) => waterfall.reveal(shown[index]),
      draw: (row, index) => {
        const lane = shown[index];
        columns.forEach(([, value, className], at) => {
          let text = value(lane);
          if (at === 3) text = data.lanes.start[lane] < 0 ? "" : durationText(text);
          if (at === 4) text = text < 0 ? "" : new Date(data.epoch + text).toISOString().slice(0, 19).replace("T", " ");
          if (at === 5) text = text || "";
          const cell = element("span", className, String(text));
          cell.setAttribute("role", "gridcell");
          if (at === 2 && waterfall.stateOf(lane) === "failed") cell.classList.add("failed");
          row.append(cell);
        });
      },
    });
    function refresh() {
      all = Array.from({ length: data.lanes.name.length }, (_, lane) => lane);
      const query = search.value.trim().toLowerCase();
      const state = chooser.value;
      shown = all.filter((lane) => (!query || waterfall.pathOf(lane).toLowerCase().includes(query)) && (!state || waterfall.stateOf(lane) === state));
      if (sorted >= 0) {
        const value = columns[sorted][1];
        const sign = isDescending ? -1 : 1;
        const keys = new Map(shown.map((lane) => [lane, value(lane)]));
        shown.sort((a, b) => { const x = keys.get(a), y = keys.get(b); return x < y ? -sign : x > y ? sign : a - b; });
      }
      counter.textContent = `${shown.length.toLocaleString("en")} of ${all.length.toLocaleString("en")}`;
      rows.setCount(shown.length);
    }
    search.addEventListener("input", refresh);
    chooser.addEventListener("change", refresh);
    refresh();
    return refresh;
  }

  function linkGraph(root) {
    if (!root) return;
    root.addEventListener("click", (event) => {
      const node = event.target.closest("[data-path]");
      const lane = node ? waterfall.paths.lastIndexOf(node.dataset.path) : -1;
      if (lane >= 0) waterfall.reveal(lane);
    });
  }
})();
