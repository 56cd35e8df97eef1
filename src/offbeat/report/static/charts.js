"use strict";
// Each function turns data from `payload.py` into the options of one ECharts chart.
const charts = (() => {
  // Okabe and Ito's colors and purple, as in plots.py.
  const LIGHT = ["#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#7A5195", "#000000"];
  const DARK = ["#56B4E9", "#E69F00", "#2CC495", "#FF7F45", "#E79AC4", "#9AD0F5", "#B99AE0", "#E6E9EC"];
  const AXES = { version: "round", virtual_seconds: "virtual time (s)", bytes_up: "uploaded bytes" };

  // The seconds of a deployment are real.
  const time = (runs) => {
    AXES.virtual_seconds = runs.length && runs.every((run) => run.real) ? "time (s)" : "virtual time (s)";
  };

  const theme = (start = first) => {
    const computed = getComputedStyle(document.documentElement),
      of = (name) => computed.getPropertyValue(name).trim();
    const dark = matchMedia("(prefers-color-scheme: dark)").matches,
      all = dark ? DARK : LIGHT,
      at = start % all.length;
    return {
      ink: of("--ink"),
      faint: of("--faint"),
      line: of("--line"),
      paper: of("--paper"),
      panel: of("--panel"),
      bad: of("--bad"),
      palette: [...all.slice(at), ...all.slice(0, at)],
      ramp: dark
        ? ["#1c2229", "#1f4e79", "#2f86b5", "#7cc7e8", "#e8f6ff"]
        : ["#f3f7fa", "#b9d9ea", "#64acd0", "#2072a8", "#0b2f57"],
    };
  };

  // Experiments differ in color and, if there are more of them than colors, in the dashes of their lines.
  const DASHES = ["solid", [7, 3], [2, 3], [8, 3, 2, 3]],
    EDGES = ["solid", "dashed", "dotted", "double"]; // the same in the tables
  let first = 0; // place in the palette of the run that is shown in detail
  const lead = (place) => (first = place);
  const style = (place) => {
    const { palette } = theme(0),
      turn = Math.floor(place / palette.length);
    return { color: palette[place % palette.length], dash: DASHES[turn % DASHES.length], edge: EDGES[turn % EDGES.length] };
  };

  const most = (values) => values.reduce((a, b) => (b !== null && b > a ? b : a), -Infinity); // Math.max(...values) fails for long arrays
  const number = (x) => {
    if (x === null || x === undefined) return "–";
    if (typeof x !== "number") return String(x); // the name of a category
    const size = Math.abs(x);
    for (const [unit, sign, from] of [
      [1e12, "T", 1e12],
      [1e9, "G", 1e9],
      [1e6, "M", 1e6],
      [1e3, "k", 1e4],
    ])
      if (size >= from) return Number((x / unit).toPrecision(3)) + sign;
    return String(Number.isInteger(x) ? x : Number(x.toPrecision(4)));
  };
  const count = (x) => (x === null || x === undefined ? "–" : Math.round(x).toLocaleString("en-US"));
  const bytes = (x) => {
    if (x === null || x === undefined) return "–";
    let size = x;
    for (const unit of ["B", "kB", "MB", "GB"]) {
      if (size < 1000) return `${Number(size.toPrecision(3))} ${unit}`;
      size /= 1000;
    }
    return `${Number(size.toPrecision(3))} TB`;
  };
  const percent = (x, digits = 1) => (x === null || x === undefined ? "–" : (100 * x).toFixed(digits));

  const base = (t, x, y, more = {}) => ({
    animation: false,
    color: t.palette,
    textStyle: { color: t.ink, fontFamily: "system-ui, sans-serif" },
    grid: { left: 8, right: 18, top: 28, bottom: 40, containLabel: true },
    tooltip: {
      trigger: "axis",
      renderMode: "richText",
      confine: true,
      backgroundColor: t.panel,
      borderColor: t.line,
      textStyle: { color: t.ink },
      valueFormatter: number,
    },
    xAxis: axis(t, x),
    yAxis: upright(t, y),
    ...more,
  });
  const COUNTS = new Set(["round", "updates", "jobs", "number", "clients", "age (versions)", "client"]);
  const whole = (name) => (COUNTS.has(name) ? { minInterval: 1 } : {}); // no fractions on the axis of a count
  const axis = (t, name, more = {}) => ({
    ...whole(name),
    type: "value",
    name,
    nameLocation: "middle",
    nameGap: 26,
    nameTextStyle: { color: t.faint },
    axisLabel: { color: t.faint, formatter: number, hideOverlap: true },
    axisLine: { lineStyle: { color: t.line } },
    splitLine: { lineStyle: { color: t.line, opacity: 0.5 } },
    ...more,
  });
  const some = (t, count) => ({ color: t.faint, interval: Math.max(0, Math.ceil(count / 16) - 1) }); // label only some of the rows
  const upright = (t, name, more = {}) =>
    axis(t, name, { nameLocation: "end", nameGap: 12, nameTextStyle: { color: t.faint, align: "left" }, ...more }); // with the name above the axis
  const pairs = (x, y) => x.map((at, i) => [at, y[i]]);
  const line = (name, data, more = {}) => ({
    name,
    type: "line",
    showSymbol: false,
    data,
    lineStyle: { width: 1.6 },
    ...more,
  });
  const legend = (t, more = {}) => ({
    type: "scroll",
    top: 0,
    textStyle: { color: t.ink },
    pageTextStyle: { color: t.ink },
    pageIconColor: t.ink,
    pageIconInactiveColor: t.faint,
    ...more,
  });
  const zoom = [{ type: "inside", filterMode: "weakFilter" }];

  // The accuracy of a model holds until the next evaluation: a step function.
  const stepped = (curve, over, what, grid) => {
    const at = curve[over],
      values = curve[what];
    let i = -1;
    return grid.map((x) => {
      while (i + 1 < at.length && at[i + 1] <= x) i++;
      return i < 0 ? null : values[i];
    });
  };
  // The mean, minimum and maximum over the seeds of one experiment. A seed that ends earlier keeps its final value, so
  // that the curve ends at the value of the table.
  const together = (curves, over, what) => {
    const grid = [...new Set(curves.flatMap((c) => c[over]))].sort((a, b) => a - b);
    const lines = curves.map((c) => stepped(c, over, what, grid));
    const at = (pick) =>
      grid.map((_, i) => {
        const v = lines.map((l) => l[i]).filter((x) => x !== null);
        return v.length ? pick(v) : null;
      });
    return {
      grid,
      mean: at((v) => v.reduce((a, b) => a + b, 0) / v.length),
      low: at((v) => Math.min(...v)),
      high: at((v) => Math.max(...v)),
    };
  };

  // The band between the lowest and the highest seed.
  const band = (name, color, grid, low, high, opacity) => ({
    name,
    type: "custom",
    silent: true,
    clip: true,
    data: [-most(low.map((v) => -v)), most(high)].map((v) => [grid[0], v]), // the axis covers both; the first one draws
    encode: { x: 0, y: 1 },
    itemStyle: { color: color },
    tooltip: { show: false },
    renderItem: ({ dataIndex }, api) => {
      if (dataIndex) return null;
      const edge = (v) =>
        grid
          .flatMap((x, i) => (v[i] === null ? [] : [...(i ? [[x, v[i - 1] ?? v[i]]] : []), [x, v[i]]]))
          .map((p) => api.coord(p));
      return {
        type: "polygon",
        shape: { points: [...edge(low), ...edge(high).reverse()] },
        style: { fill: color, opacity },
      };
    },
  });

  // A metric is { name, higher_is_better, unit }; percentages are stored as fractions.
  const scaleOf = (metric) => (metric.unit === "%" ? 100 : 1);
  const shown = (metric, value) =>
    value === null || value === undefined
      ? "–"
      : metric.unit === "%"
        ? percent(value)
        : `${Number(value.toPrecision(4))}${metric.unit ? ` ${metric.unit}` : ""}`;

  const named = (metric) => `${metric.name}${metric.unit ? ` (${metric.unit})` : ""}`;

  // `limit` is the end of the horizontal axis, or null; a logarithmic axis begins at the first positive place.
  // The part of step functions between two places, either of which may be null; what holds there is drawn up to them.
  const within = (found, start, end) => {
    const { grid } = found,
      first = start === null ? 0 : Math.max(0, grid.findLastIndex((x) => x <= start)),
      last = end === null ? grid.length - 1 : grid.findLastIndex((x) => x <= end),
      cut = (values) => values.slice(first, last + 1);
    const part = { grid: cut(grid), mean: cut(found.mean), low: cut(found.low), high: cut(found.high) };
    if (start !== null && part.grid.length) part.grid[0] = Math.max(part.grid[0], start);
    if (last >= first && last < grid.length - 1) {
      part.grid.push(end);
      for (const of of ["mean", "low", "high"]) part[of].push(part[of][last - first]);
    }
    return part;
  };

  // Mean ± standard deviation, or a single value.
  const spread = (metric, values) => {
    if (!values.length) return "–";
    const mean = values.reduce((a, b) => a + b, 0) / values.length,
      deviation = Math.sqrt(values.reduce((a, v) => a + (v - mean) ** 2, 0) / (values.length - 1));
    return values.length > 1 ? `${shown(metric, mean)} ± ${shown(metric, deviation)}` : shown(metric, mean);
  };

  function compare(groups, over, metric, target, { log = false, limit = null } = {}) {
    const t = theme(0),
      what = metric.name,
      series = [],
      scale = scaleOf(metric);
    const places = groups.flatMap((g) => g.curves.flatMap((c) => c[over].filter((x) => x > 0)));
    const start = log && places.length ? -most(places.map((x) => -x)) : null; // 0 has no logarithm
    groups.forEach(({ label, curves, color, dash }) => {
      const some = curves.filter((c) => c[over].length);
      if (!some.length) return;
      const { grid, mean, low, high } = within(together(some, over, what), start, limit),
        y = (v) => (v === null ? null : scale * v);
      series.push(
        line(
          label,
          grid.map((x, i) => [x, y(mean[i]), y(low[i]), y(high[i])]),
          {
            step: "end",
            dimensions: [AXES[over], `mean of test ${named(metric)}`, "lowest seed", "highest seed"],
            encode: { x: 0, y: 1, tooltip: 1 },
            itemStyle: { color: color },
            lineStyle: { width: 1.8, color: color, type: dash },
            z: 3,
          },
        ),
      );
      if (some.length > 1 && grid.length) series.push(band(label, color, grid, low.map(y), high.map(y), groups.length > 6 ? 0.06 : 0.15));
    });
    if (target !== null && series.length)
      series[0].markLine = {
        symbol: "none",
        silent: true,
        lineStyle: { color: t.faint, type: "dotted" },
        label: { show: false },
        data: [{ yAxis: scale * target }],
      };
    const names = [...new Set(series.map((s) => s.name))];
    const range = { ...(log ? { type: "log" } : {}), ...(limit ? { max: limit } : {}) };
    return base(t, AXES[over], `test ${named(metric)}`, {
      xAxis: axis(t, AXES[over], { ...range, ...whole(AXES[over]) }),
      yAxis: upright(t, `test ${named(metric)}`, { scale: true }),
      series,
      legend: legend(t, { data: names }),
      grid: { left: 8, right: 18, top: 54, bottom: 40, containLabel: true },
      dataZoom: zoom,
    });
  }

  const histogram = (d) => {
    const t = theme();
    return base(t, "staleness τ (versions)", "updates", {
      xAxis: { ...axis(t, "staleness τ (versions)"), type: "category", data: d.tau },
      series: [{ type: "bar", name: "updates", data: d.count, barCategoryGap: "10%" }],
    });
  };

  const overTime = (d) => {
    const t = theme();
    return base(t, AXES.virtual_seconds, "staleness τ", {
      legend: legend(t),
      dataZoom: zoom,
      grid: { left: 8, right: 18, top: 50, bottom: 40, containLabel: true },
      series: [
        line("mean", pairs(d.time, d.mean), { connectNulls: true }),
        line("largest", pairs(d.time, d.most), { connectNulls: true, lineStyle: { width: 1 } }),
      ],
    });
  };

  const busy = (d) => {
    const t = theme();
    return base(t, AXES.virtual_seconds, "number", {
      legend: legend(t),
      dataZoom: zoom,
      grid: { left: 8, right: 18, top: 50, bottom: 40, containLabel: true },
      series: [
        line("busy clients", pairs(d.concurrency.time, d.concurrency.busy)),
        line("waiting updates (max)", pairs(d.waiting.time, d.waiting.most), {
          step: "middle",
          lineStyle: { width: 1 },
        }),
      ],
    });
  };

  const participation = (d) => {
    const t = theme(),
      end = Math.max(most(d.data), most(d.updates));
    if (!d.known)
      return base(t, "client", "share of the updates (%)", {
        series: [
          { type: "scatter", name: "clients", symbolSize: 4, data: d.client.map((c, i) => [c, 100 * d.updates[i]]) },
        ],
      });
    return base(t, "share of the data (%)", "share of the updates (%)", {
      tooltip: {
        ...base(t).tooltip,
        trigger: "item",
        formatter: (p) =>
          p.seriesType === "scatter"
            ? `client ${p.data[2]}: ${number(p.data[0])} % of the data, ${number(p.data[1])} % of the updates`
            : "",
      },
      series: [
        {
          type: "scatter",
          name: "clients",
          dimensions: ["share of the data (%)", "share of the updates (%)", "client"],
          symbolSize: d.data.length > 200 ? 4 : 7,
          itemStyle: { opacity: 0.65 },
          data: d.data.map((x, i) => [100 * x, 100 * d.updates[i], d.client[i]]),
        },
        line(
          "equal",
          [
            [0, 0],
            [100 * end, 100 * end],
          ],
          { silent: true, lineStyle: { color: t.faint, type: "dashed", width: 1 } },
        ),
      ],
    });
  };

  const ages = (d) => {
    const t = theme();
    return base(t, "round", "age (versions)", {
      legend: legend(t),
      grid: { left: 8, right: 18, top: 50, bottom: 40, containLabel: true },
      dataZoom: zoom,
      yAxis: [
        upright(t, "age (versions)"),
        upright(t, "participated (%)", {
          nameTextStyle: { color: t.faint, align: "right" },
          min: 0,
          max: 100,
          splitLine: { show: false },
        }),
      ],
      series: [
        line("mean", pairs(d.version, d.mean)),
        line("oldest", pairs(d.version, d.most), { lineStyle: { width: 1 } }),
        line(
          "clients that have participated",
          d.version.map((v, i) => [v, 100 * d.heard[i]]),
          { yAxisIndex: 1, lineStyle: { width: 1, type: "dotted" } },
        ),
      ],
    });
  };

  const durations = (d) => {
    const t = theme(),
      log = d.cuts[0] > 0 && d.cuts[d.cuts.length - 1] > 100 * d.cuts[0];
    return base(t, "duration (s)", "jobs", {
      xAxis: axis(t, "duration (s)", log ? { type: "log" } : {}),
      tooltip: { ...base(t).tooltip, trigger: "item" },
      series: [
        {
          type: "custom",
          name: "jobs",
          dimensions: ["from (s)", "to (s)", "jobs"],
          encode: { x: [0, 1], y: 2 },
          data: d.count.map((n, i) => [d.cuts[i], d.cuts[i + 1], n]),
          renderItem: (_, api) => {
            const a = api.coord([api.value(0), api.value(2)]),
              b = api.coord([api.value(1), 0]);
            return {
              type: "rect",
              shape: { x: a[0], y: a[1], width: Math.max(1, b[0] - a[0] - 0.5), height: b[1] - a[1] },
              style: { fill: t.palette[0] },
            };
          },
        },
      ],
    });
  };

  // How many clients have which value of the main metric.
  const perClient = (d, metric) => {
    const t = theme(),
      scale = scaleOf(metric),
      name = `test ${metric.name}${metric.unit ? ` (${metric.unit})` : ""}`,
      cuts = d.cuts.map((cut) => scale * cut);
    const mark = (at, text, position) => ({ xAxis: scale * at, label: { formatter: text, position } });
    return base(t, name, "clients", {
      xAxis: axis(t, name, { min: cuts[0], max: cuts[cuts.length - 1] }),
      yAxis: upright(t, "clients", { minInterval: 1 }),
      tooltip: {
        ...base(t).tooltip,
        trigger: "item",
        formatter: (p) => `${number(p.value[0])} to ${number(p.value[1])}: ${p.value[2]} clients`,
      },
      series: [
        {
          type: "custom",
          name: "clients",
          dimensions: ["from", "to", "clients"],
          encode: { x: [0, 1], y: 2 },
          data: d.count.map((n, i) => [cuts[i], cuts[i + 1], n]),
          renderItem: (_, api) => {
            const a = api.coord([api.value(0), api.value(2)]),
              b = api.coord([api.value(1), 0]);
            return {
              type: "rect",
              shape: { x: a[0], y: a[1], width: Math.max(1, b[0] - a[0] - 1), height: b[1] - a[1] },
              style: { fill: t.palette[0] },
            };
          },
          markLine: {
            symbol: "none",
            silent: true,
            lineStyle: { color: t.ink, type: "dashed" },
            label: { color: t.ink },
            data: [mark(d.mean, "mean", "end")],
          },
        },
      ],
    });
  };

  const perLabel = (d, metric) => {
    const t = theme(),
      scale = scaleOf(metric),
      name = `test ${metric.name}${metric.unit ? ` (${metric.unit})` : ""}`;
    return base(t, "label", name, {
      xAxis: { ...axis(t, "label"), type: "category", data: d.values.map((_, i) => i) },
      series: [
        {
          type: "bar",
          name,
          data: d.values.map((v) => (v === null ? null : scale * v)),
          barCategoryGap: "15%",
        },
      ],
    });
  };

  const fairness = (curve, metric) => {
    const t = theme(),
      scale = scaleOf(metric),
      of = (name) => pairs(curve.version, curve[name].map((v) => (v === null ? null : scale * v)));
    return base(t, "round", `test ${metric.name}${metric.unit ? ` (${metric.unit})` : ""}`, {
      legend: legend(t),
      grid: { left: 8, right: 18, top: 50, bottom: 40, containLabel: true },
      dataZoom: zoom,
      series: [line("all test examples", of(metric.name)), line("worst tenth of the clients", of(`${metric.name}_worst_decile`))],
    });
  };

  const map = (t, x, y, data, more = {}) => ({
    ...base(t, x.name, y.name),
    tooltip: { ...base(t).tooltip, trigger: "item", formatter: more.formatter },
    grid: { left: 8, right: 64, top: 28, bottom: 40, containLabel: true },
    xAxis: { ...axis(t, x.name), type: "category", data: x.data, splitLine: { show: false } },
    yAxis: upright(t, y.name, {
      type: "category",
      data: y.data,
      axisLabel: some(t, y.data.length),
      splitLine: { show: false },
    }),
    visualMap: {
      seriesIndex: 0,
      min: more.min || 0,
      max: more.max,
      right: 0,
      top: "middle",
      itemHeight: 120,
      itemWidth: 10,
      inRange: { color: more.ramp || t.ramp },
      textStyle: { color: t.faint },
      text: more.text || [number(more.max), number(more.min || 0)],
      calculable: false,
      formatter: number,
    },
    series: [
      { type: "heatmap", name: more.title, dimensions: [x.name, y.name, more.title], data, progressive: 0, emphasis: { disabled: true } },
      ...(more.series || []),
    ],
  });

  const atWork = (d) => {
    const t = theme(),
      cells = [],
      { cuts, rows } = d.at_work,
      n = d.clients,
      first = (y) => Math.ceil((y * n) / rows.length);
    rows.forEach((row, y) =>
      row.forEach((v, x) => {
        if (v > 0) cells.push([x, y, v]);
      }),
    );
    const names = rows.map((_, y) => {
      const a = first(y),
        b = first(y + 1) - 1;
      return b > a ? `${a}–${b}` : `${a}`;
    });
    return map(
      t,
      { name: AXES.virtual_seconds, data: cuts.slice(0, -1).map((c) => number(Number(c.toPrecision(3)))) },
      { name: "clients", data: names },
      cells,
      {
        max: 1,
        title: "share of the time busy",
        text: ["busy", "idle"],
        formatter: (p) =>
          `clients ${names[p.data[1]]}, from ${number(cuts[p.data[0]])} s: busy ${percent(p.data[2], 0)} % of the time`,
      },
    );
  };

  const timeline = (d) => {
    const t = theme(),
      { clients, trips } = d.timeline,
      stalest = Math.max(1, most(trips.map((p) => p[4])));
    const end = most(trips.map((p) => p[2])),
      color = (tau) => echarts.color.lerp(Math.min(1, tau / stalest), t.ramp.slice(1));
    return {
      ...base(t, AXES.virtual_seconds, "client"),
      tooltip: {
        ...base(t).tooltip,
        trigger: "item",
        formatter: (p) =>
          `client ${clients[p.value[0]]}: ${number(p.value[1])} to ${number(p.value[2])} s\nfrom version ${p.value[3]}, ` +
          (p.value[5] ? "not aggregated" : `τ = ${p.value[4]}`),
      },
      grid: { left: 8, right: 18, top: 28, bottom: 66, containLabel: true },
      xAxis: axis(t, AXES.virtual_seconds, { min: 0, max: end }),
      yAxis: upright(t, "client", {
        type: "category",
        data: clients.map(String),
        axisLabel: some(t, clients.length),
        splitLine: { show: false },
      }),
      dataZoom: [
        {
          type: "slider",
          xAxisIndex: 0,
          bottom: 4,
          height: 18,
          start: 0,
          end: trips.length > 400 ? Math.max(4, 40000 / trips.length) : 100,
          filterMode: "weakFilter",
          labelFormatter: number,
          textStyle: { color: t.faint },
        },
        { type: "inside", xAxisIndex: 0, filterMode: "weakFilter" },
      ],
      series: [
        {
          type: "custom",
          name: "jobs",
          dimensions: ["client", "sent (s)", "ended (s)", "version", "staleness", "not aggregated"],
          encode: { x: [1, 2], y: 0 },
          data: trips.map((p) => [p[0], p[1], p[2], p[3], p[4], p[5] ? 1 : 0]),
          clip: true,
          renderItem: (_, api) => {
            const a = api.coord([api.value(1), api.value(0)]),
              b = api.coord([api.value(2), api.value(0)]);
            const height = Math.min(14, Math.max(2, api.size([0, 1])[1] * 0.66)),
              width = Math.max(1, b[0] - a[0] - 1),
              gone = api.value(5);
            const shape = { x: a[0], y: a[1] - height / 2, width, height };
            const bar = {
              type: "rect",
              shape,
              style: gone
                ? { fill: "none", stroke: t.bad, lineWidth: 1, lineDash: [3, 2] }
                : { fill: color(api.value(4)), stroke: t.faint, lineWidth: 0.4 },
            };
            const cross = {
              type: "text",
              style: {
                text: "×",
                x: a[0] + width,
                y: a[1],
                fill: t.bad,
                align: "center",
                verticalAlign: "middle",
                fontSize: 14,
              },
            };
            return { type: "group", children: gone ? [bar, cross] : [bar] };
          },
        },
      ],
    };
  };

  const partition = (d) => {
    const t = theme(),
      cells = [];
    d.counts.forEach((row, x) =>
      row.forEach((n, y) => {
        if (n > 0) cells.push([x, y, n]);
      }),
    );
    const who = (x) => (d.group > 1 ? `clients ${x * d.group}–${(x + 1) * d.group - 1}` : `client ${x}`);
    return map(
      t,
      { name: d.group > 1 ? `clients, ${d.group} per column` : "client", data: d.counts.map((_, x) => x * d.group) },
      { name: "label", data: d.counts[0].map((_, y) => y) },
      cells,
      {
        max: Math.max(1, most(cells.map((c) => c[2]))),
        title: "examples",
        formatter: (p) => `${who(p.data[0])}, label ${p.data[1]}: ${p.data[2]} examples`,
      },
    );
  };

  const plan = (d) => {
    const t = theme(),
      cells = [],
      all = d.phi.flat();
    d.phi.forEach((row, y) => row.forEach((v, x) => cells.push([x, y, v])));
    const near = (list, value) =>
      list.reduce((best, v, i) => (Math.abs(v - value) < Math.abs(list[best] - value) ? i : best), 0);
    return map(t, { name: "compression rate δ", data: d.deltas }, { name: "local steps k", data: d.ks }, cells, {
      min: -most(all.map((v) => -v)),
      max: most(all),
      title: "log₁₀ φ",
      text: ["high φ", "low φ"],
      ramp: [...t.ramp].reverse(),
      formatter: (p) => `δ = ${d.deltas[p.data[0]]}, k = ${d.ks[p.data[1]]}: φ = ${number(10 ** p.data[2])}`,
      series: [
        {
          type: "scatter",
          name: "chosen",
          symbol: "diamond",
          symbolSize: 14,
          itemStyle: { color: t.palette[3], borderColor: t.paper, borderWidth: 1 },
          data: [[near(d.deltas, d.delta), near(d.ks, d.k)]],
          tooltip: { formatter: () => `chosen: k = ${d.k}, δ = ${d.delta}` },
        },
      ],
    });
  };

  const consensus = (curve) => {
    const t = theme();
    return base(t, "round", "distance from the mean", {
      series: [line("consensus distance", pairs(curve.version, curve.consensus))],
      dataZoom: zoom,
    });
  };

  const gradients = (curve) => {
    const t = theme(),
      positive = (values) => values.map((v) => (v > 0 ? v : null)); // the axis is logarithmic
    return base(t, "round", "", {
      yAxis: upright(t, "", { type: "log" }),
      legend: legend(t),
      grid: { left: 8, right: 18, top: 50, bottom: 40, containLabel: true },
      series: [
        line("‖∇f‖²", pairs(curve.version, positive(curve.gradient_square))),
        line("σ_g²", pairs(curve.version, positive(curve.heterogeneity))),
      ],
      dataZoom: zoom,
    });
  };

  const trainLoss = (curve) => {
    const t = theme();
    return base(t, "round", "training loss", {
      series: [line("training loss", pairs(curve.version, curve.train_loss))],
      dataZoom: zoom,
    });
  };

  const epsilon = (curve) => {
    const t = theme();
    return base(t, "round", "ε", { series: [line("ε", pairs(curve.version, curve.epsilon))], dataZoom: zoom });
  };

  const network = (d) => {
    const t = theme(),
      n = d.nodes;
    return {
      animation: false,
      tooltip: { renderMode: "richText", confine: true },
      series: [
        {
          type: "graph",
          layout: "circular",
          roam: false,
          left: 24,
          right: 24,
          top: 24,
          bottom: 24,
          symbolSize: n > 60 ? 5 : 9,
          itemStyle: { color: t.palette[0] },
          lineStyle: { color: t.faint, opacity: 0.7, width: 0.8, curveness: 0 },
          label: { show: n <= 30, color: t.ink, position: "right", fontSize: 9 },
          data: Array.from({ length: n }, (_, i) => ({ name: String(i) })),
          links: d.edges.map(([a, b]) => ({ source: String(a), target: String(b) })),
        },
      ],
    };
  };

  return {
    style,
    lead,
    count,
    bytes,
    named,
    spread,
    theme,
    time,
    most,
    number,
    percent,
    scaleOf,
    shown,
    compare,
    histogram,
    overTime,
    busy,
    participation,
    ages,
    durations,
    perClient,
    perLabel,
    fairness,
    atWork,
    timeline,
    partition,
    plan,
    consensus,
    gradients,
    trainLoss,
    epsilon,
    network,
  };
})();
