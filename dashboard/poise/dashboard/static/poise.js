// Opens the page's one event stream when the tab is visible, notices when nothing is heard any more, and then asks by itself.
// htmx's SSE extension closes the stream while the tab is hidden, reopens it, and swaps what arrives into #live.
"use strict";
(() => {
  const live = document.getElementById("live");
  const heartbeat = Number(live.dataset.heartbeat); // milliseconds: the longest silence that the server allows itself
  const silence = 2.5 * heartbeat;
  const reopenAfter = 3_000;
  const notice = document.getElementById("connection");
  const lostText = notice.textContent;
  let heard = Date.now();
  let opened = false;
  let asking = false;

  const open = () => {
    if (opened || document.hidden) return;
    opened = true;
    htmx.trigger(live, "poise-open");
  };

  const reopen = () => {
    opened = false;
    setTimeout(open, reopenAfter);
  };

  const alive = () => {
    heard = Date.now();
    notice.hidden = true;
    document.documentElement.classList.remove("lost");
  };

  const lost = () => {
    if (!notice.hidden) return;
    notice.textContent = `${lostText} (${new Date(heard).toLocaleTimeString()})`;
    notice.hidden = false;
    document.documentElement.classList.add("lost");
  };

  // A proxy may hold the stream back, and a server may be gone: the same question tells which.
  const ask = async () => {
    if (asking) return;
    asking = true;
    try {
      const answer = await fetch(live.dataset.fragment, { signal: AbortSignal.timeout(heartbeat) });
      if (!answer.ok) throw new Error(String(answer.status));
      const text = await answer.text();
      await htmx.swap({ text, target: live, sourceElement: live, swap: "innerMorph" });
      notice.hidden = true;
      document.documentElement.classList.remove("lost");
    } catch {
      lost();
    } finally {
      asking = false;
    }
  };

  live.addEventListener("htmx:sse:after:connection", alive);
  live.addEventListener("htmx:sse:after:message", alive);
  live.addEventListener("htmx:sse:close", reopen);
  // The first request of the stream is not retried by the extension; later ones are.
  live.addEventListener("htmx:error", reopen);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return;
    heard = Date.now();
    open();
  });
  setInterval(() => {
    if (!document.hidden && Date.now() - heard > silence) ask();
  }, heartbeat);
  // htmx sets its elements up in a task that it queued when it was loaded, before this file: the next one comes behind it.
  setTimeout(open);
})();
