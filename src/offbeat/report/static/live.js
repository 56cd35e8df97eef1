"use strict";
(async () => {
  const get = async (address) => {
    const answer = await fetch(address);
    if (!answer.ok) throw new Error(`${address}: ${answer.status}`);
    return answer.json();
  };
  const about = document.getElementById("about"),
    known = new Map();
  const source = {
    runs: [],
    // Fetch only new evaluations; fetch everything of a run that was started again.
    async curve(id) {
      const run = source.runs.find((r) => r.id === id),
        have = known.get(id),
        count = have ? have.version.length : 0;
      if (have && run && run.evaluations === count) return have;
      const from = have && run && run.evaluations > count ? count : 0,
        more = await get(`/api/runs/${id}/curve?from=${from}`);
      const whole = from
        ? Object.fromEntries(Object.keys(have).map((name) => [name, [...have[name], ...(more[name] || [])]]))
        : more;
      known.set(id, whole);
      return whole;
    },
    detail: (id) => get(`/api/runs/${id}/detail`),
    comparison: (ids, metric, axis, baseline) =>
      get(`/api/comparison?${new URLSearchParams({ runs: ids.join(","), metric, axis, baseline })}`),
    report: (ids) => `/report?runs=${ids.join(",")}`,
  };
  const showStatus = (state) => {
    const counts = {};
    for (const run of source.runs) counts[run.state] = (counts[run.state] || 0) + 1;
    about.textContent = [
      `${source.runs.length} runs`,
      ...Object.entries(counts).map(([name, n]) => `${n} ${name}`),
      state,
    ].join(" · ");
  };
  about.setAttribute("role", "status");
  const page = view.start(document.getElementById("main"), source);
  source.runs = (await get("/api/runs")).runs;
  const labels = [...new Set(source.runs.map((run) => run.label))].slice(0, 6);
  await page.begin(
    source.runs
      .filter((run) => labels.includes(run.label))
      .slice(0, 24)
      .map((run) => run.id),
  );
  showStatus("live");
  document.body.dataset.ready = "yes";

  let due = null;
  const events = new EventSource("/events");
  events.onopen = async () => {
    source.runs = (await get("/api/runs")).runs;
    await page.changed(
      source.runs.map((run) => run.id),
      true,
    );
    showStatus("live");
  };
  events.onerror = () => showStatus("disconnected");
  events.onmessage = async (message) => {
    const { runs, relisted } = JSON.parse(message.data),
      ids = runs.map((run) => run.id);
    if (relisted) source.runs = (await get("/api/runs")).runs;
    else source.runs = source.runs.map((run) => runs.find((r) => r.id === run.id) || run);
    await page.changed(ids, relisted);
    showStatus("live");
    if (ids.includes(page.state.shown) && due === null)
      due = setTimeout(() => {
        due = null;
        if (!page.busy()) page.detail();
      }, 5000);
  };
})();
