"use strict";
(() => {
  // Airflow's own choice of light or dark, if this is in its page; else that of the browser.
  const root = document.documentElement;
  const preferred = matchMedia("(prefers-color-scheme: dark)");
  const outer = () => { try { return window.parent !== window ? window.parent.document.documentElement : null; } catch { return null; } };
  const dress = () => {
    const around = outer();
    const isDark = around ? around.classList.contains("dark") : preferred.matches;
    root.dataset.theme = isDark ? "dark" : "light";
    if (around) root.style.setProperty("--bg", getComputedStyle(around.ownerDocument.body).backgroundColor);
  };
  dress();
  preferred.addEventListener("change", dress);
  if (outer()) new MutationObserver(dress).observe(outer(), { attributes: true, attributeFilter: ["class"] });

  // The server says how soon to come again; after a failure it is asked less and less often.
  const main = document.querySelector("main");
  const PAUSE_MAX_S = 60;
  let failures = 0;
  const refreshS = () => Number(document.getElementById("gang").dataset.refreshS);
  const again = () => {
    const pauseS = refreshS();
    if (pauseS > 0) setTimeout(refresh, 1000 * Math.min(PAUSE_MAX_S, pauseS * 2 ** failures));
  };
  const refresh = async () => {
    if (document.hidden) { document.addEventListener("visibilitychange", refresh, { once: true }); return; }
    try {
      const reply = await fetch(location.pathname + "?part=true", { credentials: "same-origin", headers: { Accept: "text/html" } });
      if (!reply.ok) throw new Error("status " + reply.status);
      const text = await reply.text();
      failures = 0;
      if (!getSelection().isCollapsed) return again(); // somebody is about to copy a message
      const scrolled = [...main.querySelectorAll(".wide")].map((it) => it.scrollLeft);
      main.innerHTML = text; // made by the server, which escapes all that is in it; the page's policy runs no other script
      main.querySelectorAll(".wide").forEach((it, i) => { it.scrollLeft = scrolled[i] || 0; });
    } catch (error) {
      failures += 1;
      document.getElementById("stale").textContent = " Airflow could not be asked again (" + error.message + ").";
    }
    return again();
  };
  again();
})();
