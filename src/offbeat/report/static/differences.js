"use strict";
// What is known about differences between the selected experiments: paired differences, settings, notes.
const differences = (() => {
  // A difference with its sign; percentages as points.
  const signed = (metric, value) => {
    if (value === null || value === undefined) return "–";
    const scaled = charts.scaleOf(metric) * value,
      text = metric.unit === "%" ? Math.abs(scaled).toFixed(2) : String(Number(Math.abs(scaled).toPrecision(4)));
    return `${scaled < 0 ? "−" : "+"}${text}`;
  };
  const probability = (p) =>
    p === null || p === undefined ? "–" : p < 1e-4 ? "< 0.0001" : p < 0.1 ? String(Number(p.toPrecision(2))) : p.toFixed(2);

  const table = (make, id, heads, rows) =>
    make(
      "div",
      { class: "scroll whole", tabindex: 0, role: "region", "aria-label": id },
      make(
        "table",
        { id },
        make("thead", {}, make("tr", {}, ...heads.map((text, i) => make("th", { scope: "col", class: i ? "" : "name", text })))),
        make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((text, i) => make("td", { class: i ? "" : "name", title: i ? undefined : text, text }))))),
      ),
    );

  // Paired differences as sent by `payload.comparison`.
  const paired = (make, found, metric) => {
    const unit = metric.unit === "%" ? " (points)" : metric.unit ? ` (${metric.unit})` : "";
    const heads = ["difference of", "seeds", `mean${unit}`, `${100 * found.confidence} % interval`, "p (t-test)", "p (sign test)", "higher in"];
    const rows = found.rows.map((r) => [
      `${r.label} − ${r.baseline}`,
      r.seeds,
      signed(metric, r.mean),
      r.low === null ? "–" : `${signed(metric, r.low)} to ${signed(metric, r.high)}`,
      probability(r.p),
      probability(r.sign_p),
      `${r.above} of ${r.seeds}`,
    ]);
    return table(make, "paired", heads, rows);
  };

  // The keys in which the configs of the runs differ; the shorter side has the columns.
  const settings = (make, runs) => {
    const configs = new Map();
    for (const run of runs) if (!configs.has(run.label) && Object.keys(run.config).length) configs.set(run.label, run.config);
    const labels = [...configs.keys()],
      value = (label, key) => configs.get(label)[key] ?? "–";
    const keys = [...new Set([...configs.values()].flatMap((c) => Object.keys(c)))].filter(
      (key) => new Set(labels.map((label) => value(label, key))).size > 1,
    );
    if (!keys.length) return null;
    return labels.length > keys.length
      ? table(make, "settings", ["run", ...keys], labels.map((l) => [l, ...keys.map((k) => value(l, k))]))
      : table(make, "settings", ["setting", ...labels], keys.map((k) => [k, ...labels.map((l) => value(l, k))]));
  };

  const notes = (make, texts) => texts.map((text) => make("li", { text }));

  return { paired, settings, notes };
})();
