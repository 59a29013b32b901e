"use strict";
(() => {
  const grid = document.getElementById("grid");
  const tip = document.getElementById("tip");

  // Tooltips: by pointer and by focus; Escape takes them away.
  const show = (bar) => {
    tip.textContent = bar.dataset.tip || bar.getAttribute("aria-label");
    tip.hidden = false;
    const at = bar.getBoundingClientRect(), size = tip.getBoundingClientRect();
    const box = grid.getBoundingClientRect();
    const middle = Math.min(Math.max(at.left, box.left), box.right) + Math.min(at.width, 40) / 2;
    const left = Math.min(Math.max(8, middle - size.width / 2), innerWidth - size.width - 8);
    const below = at.bottom + 8 + size.height < innerHeight;
    tip.style.left = `${left}px`;
    tip.style.top = `${below ? at.bottom + 8 : Math.max(8, at.top - size.height - 8)}px`;
  };
  const hide = () => { tip.hidden = true; };

  if (grid) {
    let zoom = 1;
    grid.addEventListener("pointerover", (e) => { if (e.target.tagName === "I") show(e.target); });
    grid.addEventListener("pointerout", (e) => { if (e.target.tagName === "I") hide(); });
    grid.addEventListener("focusin", (e) => {
      if (e.target.tagName !== "I") return;
      const before = grid.querySelector('i[tabindex="0"]');
      if (before) before.tabIndex = -1;
      e.target.tabIndex = 0;
      show(e.target);
    });
    grid.addEventListener("focusout", hide);
    grid.addEventListener("scroll", () => { hide(); if (zoom > 1) range(); });

    // One stop for Tab; arrows move along a lane and between lanes, Home and End to its ends.
    const first = grid.querySelector("i");
    if (first) first.tabIndex = 0;
    const lanes = () => [...grid.querySelectorAll(".lane")].filter((l) => l.offsetParent && l.querySelector("i"));
    const move = (bar, key) => {
      const lane = bar.closest(".lane"), bars = [...lane.querySelectorAll("i")], n = bars.indexOf(bar);
      if (key === "ArrowRight") return bars[n + 1];
      if (key === "ArrowLeft") return bars[n - 1];
      if (key === "Home") return bars[0];
      if (key === "End") return bars[bars.length - 1];
      const all = lanes(), next = all[all.indexOf(lane) + (key === "ArrowDown" ? 1 : -1)];
      if (!next) return null;
      const x = parseFloat(bar.style.left);
      return [...next.querySelectorAll("i")].reduce((a, b) =>
        Math.abs(parseFloat(b.style.left) - x) < Math.abs(parseFloat(a.style.left) - x) ? b : a);
    };
    const sheet = grid.querySelector(".sheet");
    const setZoom = (to, about) => {
      const box = grid.getBoundingClientRect(), names = grid.querySelector(".name").offsetWidth;
      const x = Math.max(0, (about === undefined ? box.left + names + (box.width - names) / 2 : about) - box.left - names);
      const share = (grid.scrollLeft + x) / (sheet.offsetWidth - names);
      zoom = Math.min(400, Math.max(1, to));
      sheet.style.setProperty("--zoom", zoom);
      grid.scrollLeft = share * (sheet.offsetWidth - names) - x;
      document.getElementById("zoom").textContent = `${Math.round(zoom * 10) / 10}×`;
      range();
    };

    // Which time is to be seen: the axis has too few marks for that when zoomed in.
    const parts = JSON.parse(grid.dataset.parts), offset = Number(grid.dataset.offset);
    const clock = (share) => {
      const [start, at, scale] = parts.findLast((part) => part[1] <= share) || parts[0];
      const time = new Date((start + (scale ? (share - at) / scale : 0) + offset) * 1000);
      return time.toISOString().slice(11, 23);
    };
    const range = () => {
      const names = grid.querySelector(".name").offsetWidth, whole = sheet.offsetWidth - names;
      const from = (100 * grid.scrollLeft) / whole, to = (100 * (grid.scrollLeft + grid.clientWidth - names)) / whole;
      document.getElementById("range").textContent = zoom > 1 ? `${clock(from)} to ${clock(Math.min(100, to))}` : "";
    };
    grid.addEventListener("keydown", (e) => {
      if (e.ctrlKey || e.altKey || e.metaKey) return;
      if (e.key === "Escape") { hide(); return; }
      if (e.key === "+" || e.key === "=") { e.preventDefault(); setZoom(zoom * 1.5); return; }
      if (e.key === "-") { e.preventDefault(); setZoom(zoom / 1.5); return; }
      if (e.target.tagName !== "I") return;
      if (e.key === "Enter") {
        const row = document.getElementById(`w${e.target.dataset.w}`);
        if (row) { e.preventDefault(); row.scrollIntoView({ block: "center" }); row.focus(); }
        return;
      }
      if (!["ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown", "Home", "End"].includes(e.key)) return;
      e.preventDefault();
      const to = move(e.target, e.key);
      if (to) { to.focus({ preventScroll: true }); to.scrollIntoView({ block: "nearest", inline: "nearest" }); show(to); }
    });
    grid.addEventListener("click", (e) => {
      const row = e.target.dataset.w && document.getElementById(`w${e.target.dataset.w}`);
      if (row) { row.scrollIntoView({ block: "center" }); row.focus({ preventScroll: true }); }
    });
    grid.addEventListener("wheel", (e) => {
      if (!e.ctrlKey) return;
      e.preventDefault();
      setZoom(zoom * (e.deltaY < 0 ? 1.25 : 0.8), e.clientX);
    }, { passive: false });
    document.getElementById("in").addEventListener("click", () => setZoom(zoom * 2));
    document.getElementById("out").addEventListener("click", () => setZoom(zoom / 2));
    document.getElementById("fit").addEventListener("click", () => setZoom(1));
    document.querySelector(".tools").hidden = false;

    // What is looked for: part of a file's or a task's name; or files with conflicts only.
    const find = document.getElementById("find"), only = document.getElementById("only");
    const count = document.getElementById("count"), files = [...grid.querySelectorAll(".file")];
    const filter = () => {
      const text = find.value.toLowerCase();
      let left = 0;
      for (const file of files) {
        const hit = file.dataset.find.includes(text) && !(only.checked && file.dataset.bad === "0");
        file.hidden = !hit;
        left += hit;
      }
      count.textContent = left === files.length ? "" : `${left} of ${files.length} files`;
      hide();
    };
    find.addEventListener("input", filter);
    only.addEventListener("change", filter);
  }
  addEventListener("beforeprint", () => { for (const d of document.querySelectorAll("details")) d.open = true; });
})();
