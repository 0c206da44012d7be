"use strict";
// Values of marks: shown on hover, touch or keyboard focus. The page is complete without this script.
(() => {
  const tip = document.getElementById("tip");

  function show(mark) {
    tip.textContent = mark.getAttribute("aria-label");
    tip.hidden = false;
    const box = mark.getBoundingClientRect();
    const own = tip.getBoundingClientRect();
    const middle = box.left + box.width / 2 - own.width / 2;
    const left = Math.min(Math.max(4, middle), document.documentElement.clientWidth - own.width - 4);
    const above = box.top - own.height - 6;
    tip.style.left = `${left + window.scrollX}px`;
    tip.style.top = `${(above < 4 ? box.bottom + 6 : above) + window.scrollY}px`;
  }

  function hide() {
    tip.hidden = true;
  }

  function centre(mark) {
    const box = mark.getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2];
  }

  // The nearest mark in the direction of an arrow key; sideways distance counts three times.
  function nearest(marks, from, [dx, dy]) {
    const [x, y] = centre(from);
    let best = null;
    let least = Infinity;
    for (const mark of marks) {
      const [a, b] = centre(mark);
      const along = (a - x) * dx + (b - y) * dy;
      const aside = Math.abs((a - x) * dy) + Math.abs((b - y) * dx);
      if (mark !== from && along > 0.5 && along + 3 * aside < least) {
        least = along + 3 * aside;
        best = mark;
      }
    }
    return best;
  }

  const arrows = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };

  for (const chart of document.querySelectorAll("svg.chart")) {
    const marks = [...chart.querySelectorAll(".mark")];
    chart.addEventListener("keydown", (event) => {
      const from = event.target.closest(".mark");
      if (event.key === "Escape") hide();
      if (!from) return;
      let next = null;
      if (event.key === "Home") next = marks[0];
      else if (event.key === "End") next = marks[marks.length - 1];
      else if (arrows[event.key]) next = nearest(marks, from, arrows[event.key]);
      else return;
      event.preventDefault();
      if (!next) return;
      from.setAttribute("tabindex", "-1");
      next.setAttribute("tabindex", "0");
      next.focus();
    });
    chart.addEventListener("pointerover", (event) => {
      const mark = event.target.closest(".mark");
      if (mark) show(mark);
    });
    chart.addEventListener("pointerout", (event) => {
      if (event.target.closest(".mark")) hide();
    });
    chart.addEventListener("focusin", (event) => show(event.target.closest(".mark") || chart));
    chart.addEventListener("focusout", hide);
  }
})();
