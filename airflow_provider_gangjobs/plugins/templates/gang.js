"use strict";
(() => {
  // The page follows Airflow's light or dark theme if the page is in Airflow's frame, else the theme of the browser.
  const root = document.documentElement;
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const parentRoot = () => { try { return window.parent !== window ? window.parent.document.documentElement : null; } catch { return null; } };
  const applyTheme = () => {
    const parent = parentRoot();
    const isDark = parent ? parent.classList.contains("dark") : prefersDark.matches;
    root.dataset.theme = isDark ? "dark" : "light";
    if (parent) root.style.setProperty("--bg", getComputedStyle(parent.ownerDocument.body).backgroundColor);
  };
  applyTheme();
  prefersDark.addEventListener("change", applyTheme);
  if (parentRoot()) new MutationObserver(applyTheme).observe(parentRoot(), { attributes: true, attributeFilter: ["class"] });

  // Times are in the time zone that the user has chosen in Airflow, or else in that of the browser. Without a script, and
  // in a browser that does not know the zone, they are in UTC, as the server writes them.
  const clock = () => {
    let timeZone;
    try { timeZone = parentRoot() ? JSON.parse(localStorage.getItem("timezone")) || undefined : undefined; } catch { timeZone = undefined; }
    const number = { month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" };
    return new Intl.DateTimeFormat("en-CA", { year: "numeric", ...number, hourCycle: "h23", timeZoneName: "short", timeZone });
  };
  const showLocalTimes = () => {
    let format;
    try { format = clock(); } catch { return; }
    document.querySelectorAll("time[datetime]").forEach((time) => {
      const at = new Date(time.dateTime);
      if (isNaN(at)) return;
      const part = Object.fromEntries(format.formatToParts(at).map((one) => [one.type, one.value]));
      const text = `${part.year}-${part.month}-${part.day} ${part.hour}:${part.minute}:${part.second} ${part.timeZoneName}`;
      if (time.title) { time.title = text; } else { time.title = time.textContent; time.textContent = text; }
    });
  };
  showLocalTimes();

  // A page without HTTPS may not write to the clipboard. Then the text is selected, so that the user can copy it.
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copies]");
    if (!button) return;
    const source = document.getElementById(button.dataset.copies);
    try {
      await navigator.clipboard.writeText(source.textContent);
      button.textContent = "Copied";
    } catch { getSelection().selectAllChildren(source); }
  });

  // A frame of Airflow may not open a link in the whole window. An element of Airflow's own page may.
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[target=_top]");
    if (!link || !parentRoot() || event.defaultPrevented) return;
    event.preventDefault();
    const own = window.parent.document.createElement("a");
    own.href = link.href;
    if (event.ctrlKey || event.metaKey || event.shiftKey) own.target = "_blank";
    window.parent.document.body.append(own);
    own.click();
    own.remove();
  });

  // Before Airflow 3.3, the address of Airflow's page does not follow that of the frame, so a reload would lose filters.
  const outer = document.querySelector("form") && parentRoot() ? window.parent : null;
  const isFollowed = () => outer.location.pathname.endsWith(location.pathname);
  if (outer && !location.search && outer.location.search && !isFollowed()) location.replace(location.pathname + outer.location.search);
  const writeAddress = () => { if (!isFollowed()) outer.history.replaceState(outer.history.state, "", outer.location.pathname + location.search); };
  if (outer && location.search) addEventListener("load", () => setTimeout(writeAddress, 500));

  // The server sets the refresh interval. After each failure the interval doubles.
  const main = document.querySelector("main");
  const INTERVAL_MAX_S = 60;
  let failures = 0;
  const refreshS = () => Number(document.getElementById("gang").dataset.refreshS);
  const scheduleRefresh = () => {
    const intervalS = refreshS();
    if (intervalS > 0) setTimeout(refresh, 1000 * Math.min(INTERVAL_MAX_S, intervalS * 2 ** failures));
  };
  const restoreFocus = (before) => {
    const address = before.getAttribute("href");
    const same = before.matches("summary") ? document.getElementById(before.parentElement.id)?.querySelector("summary")
      : before.matches("button") ? main.querySelector(`[data-copies=${before.dataset.copies}]`)
      : [...main.querySelectorAll("a")].find((link) => link.getAttribute("href") === address && link.textContent === before.textContent);
    same?.focus({ preventScroll: true });
  };
  const refresh = async () => {
    if (document.hidden) { document.addEventListener("visibilitychange", refresh, { once: true }); return; }
    try {
      const address = new URL(location.href);
      address.searchParams.set("part", "true");
      const response = await fetch(address, { credentials: "same-origin", headers: { Accept: "text/html" } });
      if (!response.ok) throw new Error("status " + response.status);
      const html = await response.text();
      failures = 0;
      if (!getSelection().isCollapsed) return scheduleRefresh(); // The user has selected text, probably to copy it.
      const scrollPositions = [...main.querySelectorAll(".wide")].map((table) => table.scrollLeft);
      const isOpen = new Map([...main.querySelectorAll("details")].map((details) => [details.id, details.open]));
      const focused = main.contains(document.activeElement) ? document.activeElement : null;
      main.innerHTML = html; // The server escapes every value, and the page's policy lets no other script run.
      showLocalTimes();
      main.querySelectorAll("details").forEach((details) => { if (isOpen.has(details.id)) details.open = isOpen.get(details.id); });
      if (focused) restoreFocus(focused);
      main.querySelectorAll(".wide").forEach((table, i) => { table.scrollLeft = scrollPositions[i] || 0; });
    } catch (error) {
      failures += 1;
      document.getElementById("stale").textContent = " The last refresh failed (" + error.message + ").";
    }
    return scheduleRefresh();
  };
  scheduleRefresh();
})();
