// Draws the costs of each day as stacked bars. The figures are in the page, the colours in the style sheet.
"use strict";

(() => {
  const HEIGHT = 260;
  const LABEL_PX = 64;
  const place = document.getElementById("chart");
  if (!place || typeof uPlot === "undefined") return;
  const { periods, totals, parts } = JSON.parse(place.dataset.chart);
  const plot = place.querySelector(".plot");
  const said = place.querySelector(".said");
  let chart = null;

  // Of each part the sum up to it, so that the bars of the later ones show above those of the earlier ones.
  const sums = [];
  for (const part of parts) {
    const below = sums.at(-1);
    sums.push(part.costs.map((cost, index) => cost + (below ? below[index] : 0)));
  }
  const data = [periods.map((_, index) => index), ...sums.toReversed()];

  function colour(element, name) {
    return getComputedStyle(element)[name];
  }

  function label(period) {
    const month = period.length === 7;
    const day = new Date(`${period}${month ? "-01" : ""}T00:00Z`);
    const form = month ? { month: "short", year: "numeric" } : { month: "short", day: "numeric" };
    return day.toLocaleDateString("en", { ...form, timeZone: "UTC" });
  }

  function dollars(amount) {
    return amount === 0 ? "$0" : `$${amount >= 0.01 ? amount.toFixed(2) : amount.toPrecision(1)}`;
  }

  function say(index) {
    if (index === null || index === undefined) {
      said.textContent = "";
      return;
    }
    const own = parts.filter((part) => part.shown[index]).map((part) => `${part.name} ${part.shown[index]}`);
    said.textContent = `${periods[index]}: ${totals[index]}${own.length > 1 ? ` (${own.join(", ")})` : ""}`;
  }

  function days(drawn) {
    const step = Math.max(1, Math.ceil(periods.length / Math.max(1, Math.floor(drawn.bbox.width / devicePixelRatio / LABEL_PX))));
    return periods.map((_, index) => index).filter((index) => (periods.length - 1 - index) % step === 0);
  }

  function draw() {
    if (chart) chart.destroy();
    const swatches = [...place.querySelectorAll(".swatch")];
    const page = colour(place, "backgroundColor");
    const text = colour(said, "color");
    const line = colour(place, "borderTopColor");
    const bars = uPlot.paths.bars({ size: [0.8, 48] });
    const axis = { stroke: text, ticks: { stroke: line, width: 1 }, font: "13px system-ui, sans-serif" };
    const series = swatches
      .map((swatch) => ({ fill: colour(swatch, "backgroundColor"), stroke: page, width: 1, paths: bars, points: { show: false } }))
      .toReversed();
    chart = new uPlot(
      {
        width: plot.clientWidth,
        height: HEIGHT,
        legend: { show: false },
        cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
        scales: {
          x: { time: false, range: [-0.6, periods.length - 0.4] },
          y: { range: (_chart, _least, most) => [0, most > 0 ? most * 1.08 : 1] },
        },
        axes: [
          { ...axis, grid: { show: false }, splits: days, values: (_chart, found) => found.map((index) => label(periods[index])) },
          { ...axis, grid: { stroke: line, width: 1 }, size: 68, values: (_chart, found) => found.map(dollars) },
        ],
        series: [{}, ...series],
        hooks: { setCursor: [(drawn) => say(drawn.cursor.idx)] },
      },
      data,
      plot,
    );
  }

  place.hidden = false;
  draw();
  let width = plot.clientWidth;
  new ResizeObserver(() => {
    if (plot.clientWidth === width) return;
    width = plot.clientWidth;
    chart.setSize({ width, height: HEIGHT });
  }).observe(plot);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
