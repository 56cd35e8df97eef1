"use strict";
// Charts as files: PNG at three times the size of the screen, SVG, and the drawn data as CSV.
const download = (() => {
  const save = (name, blob) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };

  // Draw a chart once more, out of sight, with a renderer that the screen may not use.
  const rendered = (chart, renderer, use) => {
    const size = { width: chart.getWidth(), height: chart.getHeight() };
    const copy = echarts.init(document.createElement("div"), null, { renderer, ...size });
    copy.setOption({ ...chart.getOption(), animation: false, backgroundColor: charts.theme().paper });
    use(copy);
    copy.dispose();
  };

  // The columns of a series and its rows, with the names of categories in place of their numbers.
  const rowsOf = (series, options) => {
    if (series.type === "graph") return [["source", "target"], series.links.map((l) => [l.source, l.target])];
    const x = options.xAxis[series.xAxisIndex || 0],
      y = options.yAxis[series.yAxisIndex || 0];
    const columns = series.dimensions?.map((d) => d.name ?? d) ?? [x.name || "x", y.name || "y"];
    const category = (axis, value) => (axis.type === "category" ? axis.data[value] : value);
    const sideways = series.type === "custom" && y.type === "category"; // bars whose first value is the row
    return [
      columns,
      series.data.map((d, i) => {
        if (!Array.isArray(d)) return [category(x, i), d];
        return sideways ? [category(y, d[0]), ...d.slice(1)] : [category(x, d[0]), category(y, d[1]), ...d.slice(2)];
      }),
    ];
  };

  const quoted = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    // A leading sign of a formula is text for a spreadsheet only after an apostrophe.
    const safe = typeof value === "string" && /^[=+@\t\r-]/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };

  const csv = (chart) => {
    const options = chart.getOption(),
      parts = options.series.filter((s) => s.data && !s.silent).map((s) => [s.name, ...rowsOf(s, options)]);
    const columns = [...new Set(parts.flatMap(([, names]) => names))];
    const lines = parts.flatMap(([name, names, rows]) =>
      rows.map((row) => [name, ...columns.map((c) => row[names.indexOf(c)])]),
    );
    return [["series", ...columns], ...lines].map((line) => line.map(quoted).join(",")).join("\n") + "\n";
  };

  const kinds = {
    PNG: (chart, name) =>
      rendered(chart, "canvas", (copy) => copy.renderToCanvas({ pixelRatio: 3 }).toBlob((blob) => save(`${name}.png`, blob))),
    SVG: (chart, name) =>
      rendered(chart, "svg", (copy) => save(`${name}.svg`, new Blob([copy.renderToSVGString()], { type: "image/svg+xml" }))),
    CSV: (chart, name) => save(`${name}.csv`, new Blob([csv(chart)], { type: "text/csv" })),
  };

  // Buttons that download a chart; `chart` returns it when it has been drawn.
  const buttons = (make, title, chart) =>
    make(
      "span",
      { class: "save" },
      ...Object.entries(kinds).map(([kind, write]) =>
        make("button", {
          type: "button",
          text: kind,
          "aria-label": `Download ${title} as ${kind}`,
          onclick: () => chart() && write(chart(), title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "")),
        }),
      ),
    );

  return { buttons, csv };
})();
