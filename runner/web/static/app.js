// What works without this: everything but live updates, keys, and times in the reader's zone.
(() => {
  "use strict";
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  const two = (number) => String(number).padStart(2, "0");

  function localise(root) {
    for (const time of root.querySelectorAll("time[datetime]:not([title])")) {
      const at = new Date(time.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      time.title = `${time.textContent.trim()} UTC`;
      const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
      time.textContent = `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
    }
  }

  for (const each of document.querySelectorAll("[data-zone]")) each.textContent = zone;
  localise(document);
})();
