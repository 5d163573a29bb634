"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const main = document.querySelector("main");
  const search = byId("search");
  const count = byId("count");
  const MOST = 10000;
  const kinds = { thinking: ".thinking", tools: ".call, .results, .result", events: ".event" };
  const highlights = typeof Highlight === "function" && CSS.highlights ? CSS.highlights : null;
  let matches = [];
  let current = -1;
  let marked = null;
  let timer = 0;

  for (const element of document.querySelectorAll(".bar, .keys")) element.hidden = false;

  const hidden = () =>
    [...document.querySelectorAll("[data-shows]")]
      .filter((box) => !box.checked)
      .map((box) => kinds[box.dataset.shows])
      .join(", ");

  // The text nodes of each block in order: a match may begin in one and end in another.
  const blocks = function* () {
    const skipped = hidden();
    const walker = document.createTreeWalker(main, NodeFilter.SHOW_TEXT);
    let block = null;
    let nodes = [];
    while (walker.nextNode()) {
      const node = walker.currentNode;
      const its = node.parentElement.closest("pre, p, h1, h2, h3, dt, dd, summary");
      if (its !== block) {
        if (nodes.length) yield nodes;
        nodes = [];
        block = its;
      }
      if (its && !(skipped && its.closest(skipped))) nodes.push(node);
    }
    if (nodes.length) yield nodes;
  };

  const find = (words) => {
    const found = [];
    const pattern = new RegExp(words.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "giu");
    for (const nodes of blocks()) {
      const text = nodes.length === 1 ? nodes[0].data : nodes.map((node) => node.data).join("");
      for (const match of text.matchAll(pattern)) {
        found.push({ nodes, start: match.index, end: match.index + match[0].length });
        if (found.length > MOST) return found;
      }
    }
    return found;
  };

  const rangeOf = ({ nodes, start, end }) => {
    const range = new Range();
    let before = 0;
    let begun = false;
    for (const node of nodes) {
      const after = before + node.length;
      if (!begun && start < after) {
        range.setStart(node, start - before);
        begun = true;
      }
      if (begun && end <= after) {
        range.setEnd(node, end - before);
        break;
      }
      before = after;
    }
    return range;
  };

  const elementOf = (match) => rangeOf(match).startContainer.parentElement;

  const say = () => {
    const all = matches.length > MOST ? `${MOST.toLocaleString("en")}+` : matches.length.toLocaleString("en");
    const place = current < 0 ? "" : `${(current + 1).toLocaleString("en")} of `;
    count.textContent = search.value.trim() ? (matches.length ? place + all : "no match") : "";
    count.classList.toggle("none", Boolean(search.value.trim()) && !matches.length);
  };

  const leave = () => {
    if (marked) marked.classList.remove("here");
    marked = null;
    if (highlights) highlights.delete("here");
  };

  const look = () => {
    const words = search.value.trim();
    leave();
    current = -1;
    matches = words ? find(words) : [];
    if (highlights) {
      const all = new Highlight();
      for (const match of matches) all.add(rangeOf(match));
      highlights.set("match", all);
    }
    say();
  };

  const show = (match) => {
    leave();
    const element = elementOf(match);
    for (let at = element; at && at !== main; at = at.parentElement) {
      if (at.tagName === "DETAILS") at.open = true;
    }
    const range = rangeOf(match);
    if (highlights) {
      const here = new Highlight(range);
      here.priority = 1;
      highlights.set("here", here);
    } else {
      marked = element;
      marked.classList.add("here");
    }
    element.scrollIntoView({ block: "center" });
    const box = range.getBoundingClientRect();
    if (box.top < 90 || box.bottom > innerHeight - 20) scrollBy(0, box.top - innerHeight / 2);
  };

  const firstInView = () => {
    const at = matches.findIndex((match) => {
      const article = elementOf(match).closest("article, .event, .run");
      return article.getBoundingClientRect().bottom > 90;
    });
    return Math.max(at, 0);
  };

  const step = (by) => {
    clearTimeout(timer);
    if (timer) look();
    timer = 0;
    if (!matches.length) return;
    if (current < 0) current = by > 0 ? firstInView() : matches.length - 1;
    else current = (current + by + matches.length) % matches.length;
    show(matches[current]);
    say();
  };

  const goTo = (article) => {
    if (article) article.scrollIntoView({ block: "start" });
  };

  const turnBy = (by) => {
    const articles = [...document.querySelectorAll("article[id]")].filter((each) => each.offsetParent);
    const tops = articles.map((each) => each.getBoundingClientRect().top);
    const top = parseFloat(getComputedStyle(document.documentElement).scrollPaddingTop) || 0;
    if (by > 0) goTo(articles[tops.findIndex((each) => each > top + 4)]);
    else goTo(articles[tops.findLastIndex((each) => each < top - 4)]);
  };

  const unfold = () => {
    const button = byId("unfold");
    const open = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(open));
    for (const details of document.querySelectorAll("main details")) details.open = open;
  };

  search.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      timer = 0;
      look();
    }, 150);
  });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      step(event.shiftKey ? -1 : 1);
    } else if (event.key === "Escape") {
      search.value = "";
      look();
      search.blur();
    }
  });
  byId("next").addEventListener("click", () => step(1));
  byId("previous").addEventListener("click", () => step(-1));
  byId("unfold").addEventListener("click", unfold);
  byId("turn").addEventListener("change", (event) => {
    goTo(byId(`turn-${parseInt(event.target.value, 10)}`));
  });
  for (const box of document.querySelectorAll("[data-shows]")) {
    box.addEventListener("change", () => {
      document.body.classList.toggle(`without-${box.dataset.shows}`, !box.checked);
      look();
    });
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("input:not([type=checkbox])")) return;
    if (event.key === "/") {
      event.preventDefault();
      search.focus();
      search.select();
    } else if (event.key === "j") turnBy(1);
    else if (event.key === "k") turnBy(-1);
    else if (event.key === "u") unfold();
  });
})();
