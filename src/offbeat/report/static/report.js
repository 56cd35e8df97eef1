"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const source = {
    runs: data.runs,
    curve: async (id) => data.curves[Number(id)],
    detail: async (id) => data.details[Number(id)],
    report: () => null,
  };
  const count = data.runs.length;
  document.getElementById("about").textContent =
    `${count} ${count === 1 ? "run" : "runs"}, made by offbeat ${data.version}`;
  const page = view.start(document.getElementById("main"), source);
  page.begin(data.runs.map((run) => run.id)).then(() => {
    document.body.dataset.ready = "yes";
  });
})();
