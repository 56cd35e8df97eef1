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
    // Only what is new is asked for; a run that was begun anew is asked for whole.
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
    report: (ids) => `/report?runs=${ids.join(",")}`,
  };
  const say = (state) => {
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
  say("live");
  document.body.dataset.ready = "yes";

  let due = null;
  const news = new EventSource("/events");
  news.onopen = async () => {
    source.runs = (await get("/api/runs")).runs;
    await page.changed(
      source.runs.map((run) => run.id),
      true,
    );
    say("live");
  };
  news.onerror = () => say("not connected");
  news.onmessage = async (message) => {
    const { runs, other } = JSON.parse(message.data),
      ids = runs.map((run) => run.id);
    if (other) source.runs = (await get("/api/runs")).runs;
    else source.runs = source.runs.map((run) => runs.find((r) => r.id === run.id) || run);
    await page.changed(ids, other);
    say("live");
    if (ids.includes(page.state.shown) && due === null)
      due = setTimeout(() => {
        due = null;
        if (!page.busy()) page.detail();
      }, 5000);
  };
})();
