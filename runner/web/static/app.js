// What works without this: everything but live updates, keys, and times in the reader's zone.
(() => {
  "use strict";
  const byId = (id) => document.getElementById(id);
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  const two = (number) => String(number).padStart(2, "0");
  const sources = new WeakMap(); // what the server sent of an element, before times were changed in it

  function localise(root) {
    for (const time of root.querySelectorAll("time[datetime]:not([title])")) {
      const at = new Date(time.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      time.title = `${time.textContent.trim()} UTC`;
      const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
      time.textContent = `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
    }
  }
  const listed = () => document.querySelectorAll("[data-live-list] > [id]");
  const watched = () => document.querySelectorAll("[data-live][id]");

  // Puts a newer element in the place of an older one; what the reader has unfolded stays so.
  function replace(old, fresh) {
    const html = fresh.innerHTML;
    if (sources.get(old) === html || old.contains(document.activeElement)) return;
    for (const open of old.querySelectorAll("details[open][id]")) {
      fresh.querySelector(`#${CSS.escape(open.id)}`)?.setAttribute("open", "");
    }
    sources.set(fresh, html);
    localise(fresh);
    old.replaceWith(fresh);
  }

  function update(page) {
    for (const old of watched()) {
      const fresh = page.getElementById(old.id);
      if (fresh) replace(old, fresh);
    }
    const list = document.querySelector("[data-live-list]");
    if (list) {
      let below = null; // the newest come first
      for (const fresh of [...page.querySelectorAll("[data-live-list] > [id]")].reverse()) {
        const old = byId(fresh.id);
        if (old) replace(old, fresh);
        else {
          sources.set(fresh, fresh.innerHTML);
          localise(fresh);
          list.insertBefore(fresh, below || list.firstChild);
          list.querySelector(":scope > .empty")?.remove();
        }
        below = byId(fresh.id);
      }
    }
  }

  let stale = false, loading = false;
  async function refresh() {
    if (document.hidden || loading) {
      stale = true;
      return;
    }
    loading = true;
    stale = false;
    try {
      const response = await fetch(location.href, { headers: { "X-Refresh": "1" } });
      if (response.ok) update(new DOMParser().parseFromString(await response.text(), "text/html"));
    } catch {
      stale = true; // the stream comes back with the server, and says so again
    }
    loading = false;
    if (stale && !document.hidden) setTimeout(refresh, 500);
  }

  function watch() {
    const { topic, since } = document.body.dataset;
    if (!topic) return;
    const speaking = byId("speaking");
    const query = new URLSearchParams({ topic, since, ...(speaking ? { text: "1" } : {}) });
    const stream = new EventSource(`/live?${query}`);
    stream.addEventListener("changed", () => {
      if (speaking) {
        speaking.hidden = true;
        speaking.lastElementChild.textContent = "";
      }
      refresh();
    });
    stream.addEventListener("text", (event) => {
      if (!speaking) return;
      speaking.hidden = false;
      speaking.lastElementChild.textContent += JSON.parse(event.data);
    });
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden && stale) refresh();
    });
    addEventListener("pagehide", () => stream.close());
  }

  // Loads older turns when the reader comes near the last one.
  function readOn(link) {
    const seen = new IntersectionObserver(async ([entry]) => {
      if (!entry.isIntersecting) return;
      seen.disconnect();
      const response = await fetch(link.href, { headers: { "X-Refresh": "1" } });
      if (!response.ok) return;
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const older = page.getElementById("turns");
      localise(older);
      byId("turns").append(...older.children);
      const next = page.getElementById("older");
      if (next) {
        link.replaceWith(next);
        readOn(next);
      } else link.remove();
    }, { rootMargin: "600px" });
    seen.observe(link);
  }

  // --- Keys

  const cards = () => [...document.querySelectorAll(".ask, #turns > .turn")];
  function current() {
    const all = cards();
    const focused = document.activeElement?.closest(".ask");
    if (focused) return all.indexOf(focused);
    return all.findLastIndex((each) => each.getBoundingClientRect().top < 90);
  }
  function go(step) {
    const all = cards();
    const next = all[Math.min(Math.max(current() + step, 0), all.length - 1)];
    if (!next) return;
    next.scrollIntoView({ block: "start" });
    next.focus({ preventScroll: true });
  }
  const keys = {
    j: () => go(1),
    k: () => go(-1),
    u: () => {
      const all = [...document.querySelectorAll("details.call")];
      const open = all.some((each) => !each.open);
      for (const each of all) each.open = open;
    },
    y: (form) => form?.querySelector("[value=approve]").click(),
    n: (form) => form?.elements.why.focus(),
    e: (form) => {
      const edit = form?.querySelector(".edit");
      if (!edit) return;
      edit.open = true;
      form.elements.edited.checked = true;
      form.elements.edit.focus();
    },
    "/": () => document.querySelector("main input:not([type=hidden])")?.focus(),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const field = event.target.matches("input, textarea, select") ? event.target : null;
    if (field) {
      if (event.key === "Escape") (field.closest(".ask") || field).focus(), field.blur();
      else if (event.key === "Enter" && field.name === "why" && field.form?.matches(".answer")) {
        event.preventDefault(); // a reason that is typed is one to deny
        field.form.querySelector("[value=deny]").click();
      }
      return;
    }
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    const card = document.activeElement?.closest(".ask");
    if ("yne".includes(event.key)) {
      if (!card || event.repeat) return; // only the card that the reader picked, once a press
      sessionStorage.setItem("by-key", "1");
    }
    act(card?.querySelector("form"));
  });

  // After an answer, the second press of a double one would answer the next question, unread.
  const shownAt = performance.now(), answered = sessionStorage.getItem("answered");
  sessionStorage.removeItem("answered");
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.matches(".answer")) return;
    const typed = form.elements.why.value || form.elements.edited?.checked;
    if (answered && !typed && performance.now() - shownAt < 800) event.preventDefault();
    else sessionStorage.setItem("answered", "1");
  });

  for (const each of document.querySelectorAll("[data-zone]")) each.textContent = zone;
  for (const each of [...listed(), ...watched()]) sources.set(each, each.innerHTML);
  localise(document);
  watch();
  const older = byId("older");
  if (older) readOn(older);
  if (sessionStorage.getItem("by-key")) {
    sessionStorage.removeItem("by-key");
    document.querySelector(".ask")?.focus();
  }
})();
