// Draws every figure.chart from the JSON beside it. Colours come from the style sheet's custom
// properties, so a change between light and dark draws again. The table stays the exact account.
"use strict";

(() => {
  const drawn = new Map();

  const property = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const options = (data) => {
    const stacked = data.kind.startsWith("stacked");
    const lying = data.kind === "stacked_rows";
    const names = {
      stacked: data.kind !== "lines" && stacked,
      grid: { display: false },
      border: { color: property("--line-strong") },
    };
    const values = {
      stacked,
      beginAtZero: true,
      suggestedMax: data.unit === "%" ? 100 : undefined,
      grid: { color: property("--grid") },
      border: { display: false },
    };
    const ink = property("--ink-faint");
    const font = { family: getComputedStyle(document.body).fontFamily, size: 12 };
    return {
      animation: false,
      responsive: true,
      maintainAspectRatio: false,
      interaction: { mode: "index", intersect: false },
      plugins: {
        legend: {
          display: data.series.length > 1,
          position: "bottom",
          align: "start",
          labels: { color: property("--ink-soft"), boxWidth: 10, boxHeight: 10, padding: 14, font,
            usePointStyle: data.kind === "lines", pointStyle: "line" },
        },
        tooltip: {
          filter: (item) => data.series[item.datasetIndex].values[item.dataIndex] !== null,
          callbacks: {
            label: (item) => {
              const series = data.series[item.datasetIndex];
              return ` ${series.label}: ${series.values[item.dataIndex]} ${data.unit}`;
            },
          },
        },
      },
      indexAxis: lying ? "y" : "x",
      scales: {
        [lying ? "y" : "x"]: {
          ...names,
          ticks: { color: ink, font, maxRotation: 0, autoSkip: !lying, autoSkipPadding: 14 },
        },
        [lying ? "x" : "y"]: {
          ...values,
          ticks: { color: ink, font, maxTicksLimit: 6 },
          title: { display: true, text: data.unit, color: ink, font },
        },
      },
    };
  };

  const dataset = (series, kind) => {
    const colour = property(series.colour);
    const values = series.values.map((value) => (value === null ? null : Number(value)));
    if (kind === "lines") {
      return { label: series.label, data: values, borderColor: colour, backgroundColor: colour,
        borderWidth: series.dashed ? 1 : 2, borderDash: series.dashed ? [5, 4] : [],
        pointRadius: series.dashed ? 0 : 2, tension: 0, spanGaps: false };
    }
    return { label: series.label, data: values, backgroundColor: colour, maxBarThickness: 34,
      categoryPercentage: 0.78, barPercentage: 0.94 };
  };

  const draw = (figure) => {
    const data = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
    const canvas = figure.querySelector("canvas");
    drawn.get(canvas)?.destroy();
    if (data.kind === "stacked_rows") {
      canvas.parentElement.style.height = `${6 + 2 * data.categories.length}rem`;
    }
    drawn.set(canvas, new Chart(canvas, {
      type: data.kind === "lines" ? "line" : "bar",
      data: {
        labels: data.categories,
        datasets: data.series.map((series) => dataset(series, data.kind)),
      },
      options: options(data),
    }));
    figure.dataset.drawn = "true";
  };

  const drawAll = () => {
    for (const [canvas, chart] of drawn) {
      if (canvas.isConnected) continue;
      chart.destroy(); // its part of the page was replaced
      drawn.delete(canvas);
    }
    document.querySelectorAll("figure.chart").forEach(draw);
  };

  drawAll();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  addEventListener("dflash:replaced", drawAll);
})();
