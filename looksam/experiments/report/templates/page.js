"use strict";

// Light or dark: the reader's system decides, until the button does.
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.style.colorScheme || (system.matches ? "dark" : "light")) === "dark";
  const label = () => { button.textContent = dark() ? "Light" : "Dark"; };
  button.addEventListener("click", () => { root.style.colorScheme = dark() ? "light" : "dark"; label(); });
  system.addEventListener("change", label);
  label();
})();

// The section being read is marked in the contents.
(() => {
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const link = (section) => links.get(encodeURIComponent(section.id)) || links.get(section.id);
  const watch = new IntersectionObserver((entries) => entries.forEach(({ target, isIntersecting }) => {
    if (!isIntersecting) return;
    links.forEach((other) => other.removeAttribute("aria-current"));
    if (link(target)) link(target).setAttribute("aria-current", "true");
  }), { rootMargin: "-20% 0px -75% 0px" });
  document.querySelectorAll("main > section").forEach((section) => watch.observe(section));
})();

// A click on a column's head sorts by it: numbers by value, words alphabetically, missing values last.
document.querySelectorAll("table").forEach((table) => {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  const words = new Intl.Collator("en", { numeric: true });

  const key = (row, column) => {
    const cell = row.cells[column];
    const number = cell.dataset.value === undefined ? null : Number(cell.dataset.value);
    return { number, text: cell.textContent, missing: number === null && /^[–—-]?$/.test(cell.textContent) };
  };
  const compare = (a, b, sign) => {
    if (a.missing || b.missing) return a.missing - b.missing;
    if (a.number !== null && b.number !== null) return sign * (a.number - b.number);
    if (a.number !== null || b.number !== null) return a.number === null ? 1 : -1;
    return sign * words.compare(a.text, b.text);
  };
  heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
    const order = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    heads.forEach((other) => other.setAttribute("aria-sort", other === head ? order : "none"));
    const sign = order === "ascending" ? 1 : -1;
    const rows = [...body.rows].map((row) => [key(row, column), row]);
    rows.sort((a, b) => compare(a[0], b[0], sign));
    body.append(...rows.map(([, row]) => row));
  }));
});

// Pointing at a figure, or moving over it with the arrow keys, shows the nearest value.
document.querySelectorAll("figure").forEach((figure) => {
  const data = JSON.parse(figure.querySelector("script").textContent);
  const plot = figure.querySelector(".plot");
  const ring = figure.querySelector(".ring");
  const tip = figure.querySelector(".tip");
  const shown = data.series.map(() => true);
  const reach = plot.querySelector(".series") ? 40 : Infinity;  // in a heat map there is always a nearest value
  let at = null;

  const hide = () => { at = null; tip.hidden = true; ring.classList.remove("on"); };
  const line = (tag, text) => Object.assign(document.createElement(tag), { textContent: text });
  const show = (series, index) => {
    const [x, y, xText, yText] = data.series[series].points[index];
    at = [series, index];
    tip.replaceChildren(
      line("b", data.series[series].label), line("span", `${data.x}: ${xText}`), line("span", `${data.y}: ${yText}`));
    tip.hidden = false;
    ring.setAttribute("cx", x);
    ring.setAttribute("cy", y);
    ring.classList.add("on");
    const scale = plot.clientWidth / plot.viewBox.baseVal.width;
    const above = y * scale - tip.offsetHeight - 12;
    const left = Math.min(x * scale - tip.offsetWidth / 2, plot.clientWidth - tip.offsetWidth);
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${above < -40 ? y * scale + 14 : above}px`;
  };

  const nearest = (x, y) => {
    let best = null;
    let least = reach;
    data.series.forEach(({ points }, series) => shown[series] && points.forEach(([px, py], index) => {
      const distance = Math.hypot(px - x, py - y);
      if (distance < least) { least = distance; best = [series, index]; }
    }));
    return best;
  };
  const point = (event) => {
    const box = plot.getBoundingClientRect();
    const scale = plot.viewBox.baseVal.width / box.width;
    const closest = nearest((event.clientX - box.left) * scale, (event.clientY - box.top) * scale);
    if (closest) show(...closest); else hide();
  };
  plot.addEventListener("pointermove", point);
  plot.addEventListener("pointerdown", point);
  plot.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") hide(); });

  const next = (series, step) => {
    for (let i = series + step; i >= 0 && i < shown.length; i += step) {
      if (shown[i] && data.series[i].points.length) return i;
    }
    return series;
  };
  const keys = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
  plot.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    const move = keys[event.key];
    if (!move) return;
    event.preventDefault();
    const series = at ? (move[0] ? next(at[0], move[0]) : at[0]) : next(-1, 1);
    if (series < 0) return;
    const last = data.series[series].points.length - 1;
    show(series, at ? Math.min(Math.max(at[1] + move[1], 0), last) : 0);
  });
  plot.addEventListener("blur", hide);

  figure.querySelectorAll(".legend button").forEach((button, series) => button.addEventListener("click", () => {
    shown[series] = !shown[series];
    button.setAttribute("aria-pressed", String(shown[series]));
    plot.querySelectorAll(`[data-series="${series}"]`).forEach((group) => group.classList.toggle("off", !shown[series]));
    if (at && !shown[at[0]]) hide();
  }));
});
