// Keeps main[data-refresh-s] current while the page is looked at: fetches the page and swaps it in.
"use strict";

(() => {
  const seconds = Number(document.querySelector("main[data-refresh-s]")?.dataset.refreshS);
  if (!seconds) return;

  const refresh = async () => {
    if (document.hidden) return;
    const open = new Set([...document.querySelectorAll("main details[open]")].map((d) => d.dataset.name));
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "error" });
    if (!answer.ok) return;
    const next = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
    if (!next) return;
    for (const details of next.querySelectorAll("details")) details.open = open.has(details.dataset.name);
    document.querySelector("main").replaceWith(document.adoptNode(next));
    dispatchEvent(new Event("dflash:replaced"));
  };

  setInterval(() => refresh().catch(() => {}), seconds * 1000);
})();
