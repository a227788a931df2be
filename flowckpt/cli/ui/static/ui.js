"use strict";
// A live run: the page polls for newer data every two seconds and draws the changes.

(function () {
  const root = document.getElementById("run");
  let version = root.dataset.version;
  let isLive = root.dataset.live === "yes";
  let drawnAt = performance.now();

  async function refresh() {
    if (!isLive) return;
    try {
      const answer = await fetch(`/api/runs/${root.dataset.run}/data?since=${encodeURIComponent(version)}`);
      if (answer.status === 200) show(await answer.json());
      else if (answer.status === 304) grow();
      else if (answer.status === 401 || answer.status === 404) isLive = false;
    } catch { /* the server was stopped; it may come back */ }
    setTimeout(refresh, 2000);
  }

  function grow() { // nothing is newer: only the running steps grow
    const now = performance.now();
    runPage.grow(Math.round(now - drawnAt));
    drawnAt = now;
  }

  function show(newer) {
    if (root.dataset.planned === "yes") { location.replace(location.pathname); return; } // the plan is out of date
    drawnAt = performance.now();
    version = newer.version;
    root.dataset.version = version;
    const status = root.querySelector(".status");
    const isOther = status.textContent !== newer.status;
    status.textContent = newer.status;
    status.className = `status status-${newer.status}`;
    root.querySelector(".sentence").textContent = newer.sentence;
    const graph = document.getElementById("graph");
    if (graph) graph.innerHTML = newer.graph; // rendered and escaped by the server
    runPage.update(newer.data);
    // Reload to show the new actions and waits.
    if (isOther || newer.waits.length !== document.querySelectorAll(".wait").length) location.reload();
  }

  const TITLES = { resume: "Resume from this step", fork: "Fork from this step" };
  const detail = document.getElementById("detail");
  detail.addEventListener("shown", (event) => {
    for (const name of root.dataset.fromStep.split(" ").filter(Boolean)) {
      const link = element("a", "button", TITLES[name]);
      link.href = `/runs/${root.dataset.run}/${name}?from_step=${encodeURIComponent(event.detail.path)}`;
      detail.append(link);
    }
  });

  if (isLive) setTimeout(refresh, 2000);
})();
