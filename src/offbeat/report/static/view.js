"use strict";
// The page: a list of runs, a comparison of the selected ones, and one run in detail. A source provides the runs:
//   source.runs        rows from payload.row                source.curve(id), source.detail(id)   promises
//   source.report(ids) the URL of a report on some runs, or null
const view = (() => {
  // Text from run folders is set through textContent only, because it may contain markup.
  const make = (tag, more = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(more)) {
      if (name === "text") element.textContent = value;
      else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value === true) element.setAttribute(name, "");
      else if (value !== false && value !== undefined) element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  };
  const { number, count, bytes } = charts;
  const AXES = [
    ["version", "rounds"],
    ["virtual_seconds", "virtual time"],
    ["bytes_up", "uploaded bytes"],
  ];
  const ACCURACY = { name: "accuracy", higher_is_better: true, unit: "%" };

  function start(root, source) {
    const state = {
      over: "virtual_seconds",
      what: null, // name of the metric that is compared; the main one of the first run at first
      compared: null, // the metric to which the target belongs
      target: null,
      selected: new Set(),
      shown: null,
      filter: "",
      log: false,
      limit: null, // end of the horizontal axis
      at: "end", // where paired differences are taken: "end", or "shared", where the shortest run ends
      baseline: "",
      whole: false, // whether the list shows all runs without scrolling
    };
    const drawn = new Map(),
      curves = new Map();
    let asked = 0;

    // Figures -----------------------------------------------------------------------------------------------------
    const draw = (place, options, renderer = "svg") => {
      // canvas for maps of thousands of cells
      if (!drawn.has(place)) drawn.set(place, echarts.init(place, null, { renderer }));
      drawn.get(place).setOption(options, { notMerge: true });
    };
    const forget = (within) => {
      for (const [place, chart] of drawn)
        if (within.contains(place)) {
          chart.dispose();
          drawn.delete(place);
        }
    };
    const figure = (title, note, options, kind = "", renderer = "svg") => {
      const place = make("div", {
        class: `chart ${kind}`.trim(),
        role: "img",
        "aria-label": note ? `${title}. ${note}` : title,
      });
      const all = make(
        "figure",
        { class: kind === "tall" ? "wide" : "" },
        make(
          "figcaption",
          { text: title },
          download.buttons(make, title, () => drawn.get(place)),
          ...(note ? [make("small", { text: note })] : []),
        ),
        place,
      );
      return [all, () => draw(place, options(), renderer)];
    };
    // Buttons do what the mouse does with the slider of a chart.
    const zoomed = ([all, show]) => {
      const place = all.querySelector(".chart");
      const go = (shift, scale) => {
        const chart = drawn.get(place),
          { start, end } = chart.getOption().dataZoom[0],
          width = Math.min(100, (end - start) * scale);
        const first = Math.max(0, Math.min(100 - width, (start + end) / 2 + (shift - 0.5) * width));
        chart.dispatchAction({ type: "dataZoom", dataZoomIndex: 0, start: first, end: first + width });
      };
      const words = [
        ["Earlier", -0.5, 1],
        ["Later", 0.5, 1],
        ["Zoom in", 0, 0.5],
        ["Zoom out", 0, 2],
      ];
      all.append(
        make(
          "p",
          { class: "controls" },
          ...words.map(([text, shift, scale]) =>
            make("button", { type: "button", text, onclick: () => go(shift, scale) }),
          ),
        ),
      );
      return [all, show];
    };
    new ResizeObserver(() => drawn.forEach((chart) => chart.resize())).observe(root);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      compare();
      detail();
    });

    const swatch = ({ color, edge }) => make("span", { class: "swatch", style: `border-top: 4px ${edge ?? "solid"} ${color}` });

    // The list ----------------------------------------------------------------------------------------------------
    const body = make("tbody"),
      all = make("input", {
        type: "checkbox",
        "aria-label": "Select all runs",
        onchange: () => {
          source.runs.forEach((run) => tick(run.id, all.checked));
          refresh();
        },
      });
    const heads = ["run", "seed", "state", "metric", "best", "rounds", "time", "uploaded", "τ mean/max", "lost", ""];
    const titled = make("th", { scope: "col", text: "metric" }),
      best = make("th", { scope: "col", text: "best" });
    const search = make("input", {
      type: "search",
      placeholder: "Filter by name or state",
      "aria-label": "Filter runs by name or state",
      oninput: () => {
        state.filter = search.value.toLowerCase();
        list();
      },
    });
    const table = make(
      "table",
      {},
      make(
        "thead",
        {},
        make(
          "tr",
          {},
          make("th", { scope: "col" }, all),
          ...heads.map((text, i) =>
            text === "metric" ? titled : text === "best" ? best : make("th", { scope: "col", class: i === 0 ? "name" : "", text }),
          ),
        ),
      ),
      body,
    );
    const seek = make("p", { class: "controls" }, search),
      rows = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Runs" }, table);
    const more = make("button", {
      type: "button",
      class: "more",
      onclick: () => {
        state.whole = !state.whole;
        list();
      },
    });
    const tick = (id, on) => (on ? state.selected.add(id) : state.selected.delete(id));

    function line(run) {
      const s = run.summary,
        main = run.metrics[0];
      const box = make("input", {
        type: "checkbox",
        "data-key": `box-${run.id}`,
        "aria-label": `Compare ${run.label}, seed ${run.seed}`,
        onchange: () => {
          tick(run.id, box.checked);
          refresh();
        },
      });
      box.checked = state.selected.has(run.id);
      const name = make(
        "td",
        { class: "name", title: `${run.label} · ${run.folder}` },
        swatch(state.selected.has(run.id) ? styles().get(run.label) : { color: "transparent" }),
        run.label,
      );
      const row = make(
        "tr",
        {},
        make("td", {}, box),
        name,
        make("td", { text: run.seed ?? "–" }),
        make("td", { class: run.state, text: run.state }),
      );
      if (run.problem) {
        row.append(make("td", { class: "problem", colspan: 7, text: run.problem }));
      } else {
        const cells = [
          charts.shown(main, run.finals[main.name]),
          charts.shown(main, run.best),
          `${count(run.version)}${run.rounds && run.state !== "finished" ? ` of ${count(run.rounds)}` : ""}`,
          `${number(s.virtual_seconds ?? run.virtual_seconds)} s`,
          bytes(s.bytes_up ?? run.bytes_up),
          s.staleness_mean === undefined ? "–" : `${number(s.staleness_mean)}/${s.staleness_max}`,
          count(s.lost),
        ];
        row.append(...cells.map((text) => make("td", { text })));
      }
      const href = source.report([run.id]);
      row.append(make("td", {}, ...(href ? [make("a", { href, text: "report", "data-key": `link-${run.id}` })] : [])));
      return row;
    }
    function list() {
      const held = body.contains(document.activeElement) ? document.activeElement.getAttribute("data-key") : null;
      const wanted = source.runs
        .filter((run) => !state.filter || `${run.label} ${run.folder} ${run.state}`.toLowerCase().includes(state.filter))
        .sort((a, b) => (b.state === "running") - (a.state === "running"));
      const mains = new Map(source.runs.map((run) => [run.metrics[0].name, run.metrics[0]]));
      best.textContent = mains.size === 1 && [...mains.values()][0].unit ? `best (${[...mains.values()][0].unit})` : "best";
      titled.textContent = mains.size === 1 ? charts.named([...mains.values()][0]) : "metric";
      body.replaceChildren(...wanted.map(line));
      if (held) body.querySelector(`[data-key="${held}"]`)?.focus();
      seek.hidden = source.runs.length <= 12;
      more.hidden = wanted.length <= 12;
      more.textContent = state.whole ? "Show fewer" : `Show all ${count(wanted.length)} runs`;
      more.setAttribute("aria-expanded", String(state.whole));
      rows.classList.toggle("whole", state.whole);
      all.checked = source.runs.length > 0 && source.runs.every((run) => state.selected.has(run.id));
    }

    // Comparison --------------------------------------------------------------------------------------------------
    const selected = () => source.runs.filter((run) => state.selected.has(run.id));
    // An experiment keeps its color, whatever is selected.
    const labels = () => [...new Set(source.runs.map((run) => run.label))];
    const styles = () => new Map(labels().map((label, i) => [label, charts.style(i)]));
    const groups = () => {
      const by = new Map(),
        style = styles();
      for (const run of selected()) {
        const curve = curves.get(run.id);
        if (!curve || !curve.version.length) continue;
        if (!by.has(run.label)) by.set(run.label, { label: run.label, ...style.get(run.label), curves: [], runs: [] });
        by.get(run.label).curves.push(curve);
        by.get(run.label).runs.push(run);
      }
      return [...by.values()];
    };
    const radios = (name, options, key) =>
      make(
        "fieldset",
        {},
        make("legend", { text: name }),
        ...options.map(([value, text]) => {
          const input = make("input", {
            type: "radio",
            name: key,
            value,
            onchange: () => {
              state[key] = value;
              if (key === "over") state.limit = limit.value = null;
              compare();
              paired();
            },
          });
          input.checked = state[key] === value;
          return make("label", {}, input, text);
        }),
      );
    const place = make("div", {
      class: "chart tall",
      role: "img",
      "aria-label": "The selected runs over the chosen axis; the band spans the lowest to the highest seed",
    });
    const slider = make("input", {
      type: "range",
      min: 0,
      max: 100,
      step: 0.1,
      oninput: () => {
        state.target = slider.value / charts.scaleOf(metric());
        shown.textContent = `${slider.value} ${metric().unit}`.trim();
        compare();
      },
    });
    const shown = make("output", {}),
      reached = make("tbody"),
      whole = make("a", { text: "Report on the selected runs", hidden: true });
    const logarithmic = make("input", {
      type: "checkbox",
      onchange: () => {
        state.log = logarithmic.checked;
        compare();
      },
    });
    const limit = make("input", {
      type: "number",
      min: 0,
      step: "any",
      placeholder: "end",
      oninput: () => {
        state.limit = Number(limit.value) > 0 ? Number(limit.value) : null;
        compare();
      },
    });
    const scale = make("label", {}, logarithmic, "logarithmic axis"),
      until = make("label", {}, "up to", limit),
      legend = make("p", { class: "faint", id: "legend" });
    const target = make("label", {}, "Target", slider, shown),
      choice = make("div", { class: "choice" }),
      column = make("th", { scope: "col", text: "metric" });
    // The metrics of the selected runs by name, in the order in which they first appear.
    const known = () => new Map(selected().flatMap((run) => run.metrics).map((m) => [m.name, m]));
    const metric = () => known().get(state.what) ?? known().values().next().value ?? ACCURACY;
    const good = (a) =>
      a !== null && a !== undefined && (metric().higher_is_better === false ? a <= state.target : a >= state.target);
    const first = (curve) => (curve[metric().name] ?? []).findIndex(good);
    function metrics() {
      const names = [...known().keys()];
      if (!names.includes(state.what)) state.what = names[0] ?? null;
      if (state.what !== state.compared) {
        state.compared = state.what;
        state.target = null;
      }
      if ([...choice.querySelectorAll("input")].map((i) => i.value).join() === names.join()) return;
      choice.replaceChildren(radios("Metric", names.map((name) => [name, name]), "what"));
    }
    // The range of the slider: percentages from 0 to 100, other metrics over the values of the curves.
    function range(some) {
      const values = some.flatMap((g) => g.curves.flatMap((c) => (c[metric().name] ?? []).filter((v) => v !== null)));
      const least = metric().unit === "%" ? 0 : Math.min(...values, 0),
        most = metric().unit === "%" ? 1 : Math.max(...values, 0) || 1;
      const scale = charts.scaleOf(metric());
      slider.min = scale * least;
      slider.max = scale * most;
      slider.step = metric().unit === "%" ? 0.1 : Number((((most - least) * scale) / 1000).toPrecision(2));
    }
    function compare() {
      metrics();
      const some = groups().filter((g) => g.curves.every((c) => c[metric().name])),
        { name } = metric(),
        scale = charts.scaleOf(metric());
      if (state.target === null && some.length) {
        range(some);
        const own = new Set(selected().map((run) => run.target)),
          [set] = own; // the target of the runs, if they agree
        const main = selected()[0].metrics[0].name === name,
          lower = metric().higher_is_better === false,
          least = (c) => Math.min(...c.filter((v) => v !== null));
        const best = lower
          ? Math.min(...some.map((g) => Math.max(...g.curves.map((c) => least(c[name])))))
          : Math.max(...some.map((g) => Math.min(...g.curves.map((c) => charts.most(c[name])))));
        const given = main && own.size === 1 && set !== null;
        slider.value = scale * (given ? set : lower ? 1.1 * best : 0.9 * best);
        state.target = given ? set : slider.value / scale; // the slider rounds
        shown.textContent = `${Number((scale * state.target).toPrecision(6))} ${metric().unit}`.trim();
      }
      column.textContent = charts.named(metric());
      const href = some.length ? source.report(selected().map((run) => run.id)) : null;
      whole.hidden = !href;
      if (href) whole.href = href;
      draw(place, charts.compare(some, state.over, metric(), state.target, state));
      const counts = some.map((g) => g.curves.length),
        sizes = [...new Set([Math.min(...counts), Math.max(...counts)])].join(" to ");
      legend.textContent = counts.some((n) => n > 1)
        ? `Lines: mean of the seeds (${sizes}); bands: from the lowest to the highest seed. A seed that ends earlier keeps its last value. ` +
          "In the table, ± is the standard deviation over the seeds."
        : some.length
          ? "One seed each: no band."
          : "";
      reached.replaceChildren(
        ...some.map(({ label, color, edge, curves: c, runs }) => {
          const at = c.map(first),
            there = c.filter((_, i) => at[i] >= 0),
            mean = (name) => there.map((x) => x[name][first(x)]).reduce((a, b) => a + b, 0) / there.length;
          const cells = there.length
            ? [count(mean("version")), `${number(mean("virtual_seconds"))} s`, bytes(mean("bytes_up"))]
            : ["never", "never", "never"];
          const last = runs.map((run) => run.finals[name]).filter((v) => v !== null && v !== undefined);
          return make(
            "tr",
            {},
            make("td", { class: "name" }, swatch({ color, edge }), label),
            make("td", { text: charts.spread(metric(), last) }),
            make("td", { text: count(last.length) }),
            ...cells.map((text) => make("td", { text })),
            make("td", { text: `${there.length} of ${c.length}` }),
          );
        }),
      );
    }

    // Differences ------------------------------------------------------------------------------------------------
    const between = make("div"),
      settings = make("div"),
      remarks = make("ul", { id: "notes", "aria-label": "Notes on the comparison" });
    const where = radios("Values", [["end", "at the end of each run"], ["shared", "on the chosen axis, where the shortest run ends"]], "at"),
      base = make("select", {
        "aria-label": "Baseline",
        onchange: () => {
          state.baseline = base.value;
          paired();
        },
      });
    let asking = 0;
    async function paired() {
      const turn = ++asking,
        ids = selected().map((run) => run.id),
        names = new Set(selected().map((run) => run.label));
      const table = names.size > 1 ? differences.settings(make, selected()) : null;
      settings.replaceChildren(...(table ? [make("h3", { text: "Settings that differ" }), table] : []));
      if (!names.has(state.baseline)) state.baseline = "";
      base.replaceChildren(
        make("option", { value: "", text: names.size > 5 ? "the first one" : "all pairs" }),
        ...(source.baselines === false ? [] : [...names].map((label) => make("option", { value: label, text: label }))),
      );
      base.value = state.baseline;
      let found = null;
      if (names.size > 1)
        try {
          found = await source.comparison(ids, metric().name, state.at === "shared" ? state.over : "", state.baseline);
        } catch {
          found = null; // a run no longer exists
        }
      if (turn !== asking) return;
      if (!found?.rows) {
        between.replaceChildren();
        remarks.replaceChildren(...differences.notes(make, found?.remarks ?? []));
        return;
      }
      const there = found.rows.filter((r) => names.has(r.label) && names.has(r.baseline));
      const point = Object.entries(found.at)
        .map(([axis, value]) => `, at the last evaluation up to ${axis === "bytes_up" ? bytes(value) : axis === "version" ? `round ${count(value)}` : `${number(value)} s`}`)
        .join("");
      between.replaceChildren(
        make("h3", { text: "Paired differences" }),
        make("div", { class: "controls" }, where, make("label", {}, "Compare with", base)),
        ...(there.length
          ? [
              differences.paired(make, { ...found, rows: there }, metric()),
              make("p", {
                class: "faint",
                text:
                  `Seed by seed${point}. Intervals are those of Student's t distribution; p-values are corrected for ` +
                  `${count(found.rows.length)} ${found.rows.length === 1 ? "comparison" : "comparisons"} (Holm)` +
                  (source.fixed ? ", over all seeds of this report." : "."),
              }),
            ]
          : [make("p", { class: "faint", text: "There are no pairs of finished runs with the same seed." })]),
      );
      remarks.replaceChildren(...differences.notes(make, [...found.remarks, ...found.notes]));
    }

    // One run -----------------------------------------------------------------------------------------------------
    const select = make("select", {
        id: "which",
        onchange: () => {
          state.shown = select.value;
          detail();
        },
      }),
      details = make("div", { id: "details" });
    function choices() {
      const options = source.runs.map((run) => {
        const o = make("option", {
          value: run.id,
          text: `${run.label}${run.seed === null ? "" : `, seed ${run.seed}`} — ${run.folder}`,
        });
        o.selected = run.id === state.shown;
        return o;
      });
      select.replaceChildren(...options);
    }
    // The figures of the convergence theories, under a heading; nothing for a run without a summary.
    const theory = (rows) =>
      rows
        ? [
            make("h3", { text: "Theory" }),
            make(
              "table",
              { id: "theory" },
              make(
                "thead",
                {},
                make(
                  "tr",
                  {},
                  make("th", { scope: "col", class: "name", text: "figure" }),
                  make("th", { scope: "col", text: "value" }),
                  make("th", { scope: "col", class: "name", text: "meaning" }),
                ),
              ),
              make(
                "tbody",
                {},
                ...rows.map((row) =>
                  make(
                    "tr",
                    {},
                    make("td", { class: "name", title: row.name, text: row.symbol }),
                    make("td", { text: number(row.value) }),
                    make("td", { class: "name", text: row.words }),
                  ),
                ),
              ),
            ),
          ]
        : [];
    async function detail() {
      const id = state.shown,
        turn = ++asked;
      if (id === null) {
        forget(details);
        details.replaceChildren();
        return;
      }
      let d, curve;
      try {
        [d, curve] = await Promise.all([source.detail(id), source.curve(id)]);
      } catch {
        return;
      } // the run no longer exists
      if (turn !== asked) return; // another run was selected meanwhile
      forget(details);
      const made = [];
      charts.lead(labels().indexOf(source.runs.find((run) => run.id === id)?.label));
      if (d.trips) {
        const part =
          d.timeline.clients.length < d.clients
            ? `${d.timeline.clients.length} of ${number(d.clients)} clients`
            : `${d.clients} clients`;
        const nothing = Object.entries(d.refused)
          .map(([reason, n]) => `${number(n)} ${reason}`)
          .join(", ");
        made.push(
          figure(
            "Staleness",
            `${number(d.trips - d.lost)} updates aggregated; ${number(d.lost)} jobs without an aggregated update${nothing ? `: ${nothing}` : ""}`,
            () => charts.histogram(d.staleness),
          ),
        );
        made.push(figure("Staleness over time", "", () => charts.overTime(d.staleness_over_time)));
        made.push(
          figure("Busy clients and waiting updates", "Jobs that were in flight at the end are not counted.", () =>
            charts.busy(d),
          ),
        );
        made.push(
          figure(
            "Participation",
            (d.participation.known
              ? "A client on the dashed line has the same share of the updates as of the data."
              : "The distribution of the data is not known.") +
              (d.attackers ? ` ${number(d.attackers)} clients are attackers.` : ""),
            () => charts.participation(d.participation),
          ),
        );
        made.push(figure("Job durations", "", () => charts.durations(d.durations)));
        if (d.ages)
          made.push(
            figure("Age of cached updates", "Versions since each client started its latest update", () =>
              charts.ages(d.ages),
            ),
          );
        made.push(
          zoomed(
            figure(
              "Jobs",
              `${part}, ${number(d.timeline.trips.length)} of ${number(d.trips)} jobs. Darker bars are staler; dashed bars with a cross were not aggregated. The slider zooms.`,
              () => charts.timeline(d),
              "tall",
            ),
          ),
        );
        if (d.clients > 40)
          made.push(
            figure(
              "Busy clients over time",
              `all ${number(d.clients)} clients`,
              () => charts.atWork(d),
              "tall",
              "canvas",
            ),
          );
      }
      const run = source.runs.find((each) => each.id === id),
        main = run?.metrics[0] ?? ACCURACY,
        title = main.name[0].toUpperCase() + main.name.slice(1),
        value = (v) => `${charts.shown(main, v)}${main.unit === "%" ? " %" : ""}`;
      if (d.per_client) {
        const p = d.per_client,
          worst = p.worst.map(([client, v]) => `client ${client} (${value(v)})`).join(", ");
        made.push(
          figure(
            `${title} per client`,
            `${number(p.clients)} clients at version ${p.version}: mean ${value(p.mean)}, median ${value(p.median)}, worst tenth ${value(p.worst_decile)}. Worst: ${worst}`,
            () => charts.perClient(p, main),
          ),
        );
      }
      if (curve[`${main.name}_worst_decile`])
        made.push(figure("Fairness over time", "", () => charts.fairness(curve, main)));
      if (d.per_label)
        made.push(
          figure(`${title} per label`, `at version ${d.per_label.version}`, () => charts.perLabel(d.per_label, main)),
        );
      if (curve.consensus)
        made.push(
          figure("Consensus", "Distance of the clients' models from their mean, before the server step", () =>
            charts.consensus(curve),
          ),
        );
      if (curve.epsilon)
        made.push(
          figure("Privacy", "ε of the client that contributed most often; the config states δ", () =>
            charts.epsilon(curve),
          ),
        );
      if (curve.heterogeneity)
        made.push(
          figure("Gradients", "Of the clients' training losses at x: ‖∇f‖² and the heterogeneity σ_g²", () =>
            charts.gradients(curve),
          ),
        );
      if (curve.train_loss)
        made.push(
          figure("Training loss", "Mean over the clients of the loss of x on their data", () =>
            charts.trainLoss(curve),
          ),
        );
      if (d.network)
        made.push(
          figure(
            "Network",
            `ρ = ${number(d.network.rho)}${d.network.drawn ? "" : `; ${d.network.nodes} nodes are too many to draw`}`,
            () => charts.network(d.network),
          ),
        );
      if (d.partition)
        made.push(figure("Labels by client", "", () => charts.partition(d.partition), "tall", "canvas"));
      if (d.plan)
        made.push(
          ...d.plan.map((p) =>
            figure(
              `Device ${p.client} of ${p.devices}: k = ${p.k}, δ = ${p.delta}`,
              "φ over local steps and compression rate; the diamond marks the choice",
              () => charts.plan(p),
              "",
              "canvas",
            ),
          ),
        );
      const words = Object.entries(d.status || {}).flatMap(([name, value]) => [
        make("dt", { text: name }),
        make("dd", { text: String(value) }),
      ]);
      const copy = make("button", {
        type: "button",
        text: "Copy",
        onclick: () =>
          navigator.clipboard?.writeText(d.config).then(() => {
            copy.textContent = "Copied";
          }),
      });
      details.replaceChildren(
        make("div", { class: "grid" }, ...made.map(([element]) => element)),
        ...theory(d.theory),
        make("h3", { text: "Reproduce this run" }),
        make(
          "p",
          {},
          "Save this as experiment.toml, then run ",
          make("code", { text: "offbeat run experiment.toml" }),
          ". ",
          copy,
        ),
        make("pre", { tabindex: 0, text: d.config || "no config.toml" }),
        make("h3", { text: "Software and hardware" }),
        make("dl", {}, ...words),
      );
      for (const [element, show] of made)
        try {
          show();
        } catch (error) {
          element.append(make("p", { class: "problem", text: `this figure cannot be drawn: ${error.message}` }));
        }
    }

    // A run that no longer exists has no curve.
    const fetched = (ids) =>
      Promise.all(
        ids.map(async (id) => {
          try {
            curves.set(id, await source.curve(id));
          } catch {
            curves.delete(id);
          }
        }),
      );

    async function refresh() {
      await fetched(selected().map((run) => run.id));
      list();
      compare();
      await paired();
    }

    root.replaceChildren(
      make(
        "section",
        { "aria-labelledby": "runs-title" },
        make("h2", { id: "runs-title", tabindex: -1, text: "Runs" }),
        seek,
        rows,
        more,
      ),
      make(
        "section",
        { "aria-labelledby": "compare-title" },
        make("h2", { id: "compare-title", text: "Comparison" }),
        make("div", { class: "controls" }, radios("Axis", AXES, "over"), scale, until, choice, target, whole),
        make("figcaption", {}, download.buttons(make, "comparison", () => drawn.get(place))),
        place,
        legend,
        make(
          "div",
          { class: "scroll whole" },
          make(
            "table",
            { id: "reached" },
            make(
              "thead",
              {},
              make(
                "tr",
                {},
                make("th", { scope: "col", class: "name", text: "run" }),
                column,
                ...["seeds", "rounds to target", "time to target", "uploaded bytes to target", "seeds at target"].map((text) =>
                  make("th", { scope: "col", text }),
                ),
              ),
            ),
            reached,
          ),
        ),
        remarks,
        between,
        settings,
      ),
      make(
        "section",
        { "aria-labelledby": "one-title" },
        make("h2", { id: "one-title", text: "One run" }),
        make("p", { class: "controls" }, make("label", { for: "which", text: "Run" }), select),
        details,
      ),
    );

    return {
      state,
      // Draw everything from the source's runs.
      async begin(ids) {
        charts.time(source.runs);
        ids.forEach((id) => tick(id, true));
        state.shown = source.runs.length ? source.runs[0].id : null;
        choices();
        await refresh();
        await detail();
      },
      // Update the runs that have changed; `fresh` tells whether runs were added, removed or relabeled.
      async changed(ids, fresh) {
        const there = new Set(source.runs.map((run) => run.id));
        for (const id of state.selected)
          if (!there.has(id)) {
            state.selected.delete(id);
            curves.delete(id);
          }
        if (!there.has(state.shown)) {
          state.shown = source.runs.length ? source.runs[0].id : null;
          detail();
        }
        if (fresh) {
          choices();
          charts.time(source.runs);
        }
        const moved = ids.filter((id) => state.selected.has(id));
        await fetched(moved);
        list();
        if (moved.length || fresh) {
          compare();
          await paired();
        }
      },
      detail,
      // Whether the user is reading the details, which should not change then.
      busy: () => details.matches(":hover") || details.contains(document.activeElement),
    };
  }
  return { start };
})();
