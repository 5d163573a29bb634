// What of a page is hard to read, or has no name for who cannot see it: a list of words, empty for a good page.
() => {
  const found = [];
  const channels = (text) => (text.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ratio = (one, other) => {
    const [a, b] = [light(channels(one)), light(channels(other))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  const ground = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const color = getComputedStyle(e).backgroundColor;
      if (channels(color).length < 4 || channels(color)[3] === 1) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const texts = (element) => [...element.childNodes].filter((n) => n.nodeType === 3 && n.data.trim());
  const isShown = (element) => element.checkVisibility({ visibilityProperty: true });
  const say = (what, element) => found.push(`${what}: ${element.outerHTML.slice(0, 90)}`);

  for (const element of document.querySelectorAll("main *, .top *, footer *")) {
    if (!isShown(element) || !texts(element).length || element.closest(":disabled, option")) continue;
    // https://www.w3.org/TR/WCAG22/#contrast-minimum
    const style = getComputedStyle(element);
    const value = ratio(style.color, ground(element));
    if (value < 4.5) say(`contrast ${value.toFixed(2)}`, element);
  }
  for (const link of document.querySelectorAll("main a[href], footer a[href]")) {
    // https://www.w3.org/TR/WCAG22/#use-of-color: a link beside other words does not differ by its colour alone
    const block = link.closest("p, li, h1, h2, h3, dd, td, summary, div") ?? link.parentElement;
    const beside = [...block.querySelectorAll("*"), block].filter((each) => !each.closest("a, button, label"));
    const isAmongWords = beside.some((each) => isShown(each) && texts(each).some((n) => /\p{L}/u.test(n.data)));
    if (!isShown(link) || !isAmongWords) continue;
    const [own, its] = [getComputedStyle(link), getComputedStyle(block)];
    const differs = ["textDecorationLine", "fontWeight", "fontFamily", "backgroundColor"].some((name) => own[name] !== its[name]);
    if (!differs && own.color !== its.color && ratio(own.color, its.color) < 3) say("only its colour shows a link", link);
  }
  for (const field of document.querySelectorAll("input:not([type=hidden]), select, textarea, button, a[href], summary")) {
    const name = field.labels?.length || field.getAttribute("aria-label") || field.textContent.trim();
    if (!name && !field.hidden) say("no name", field);
  }
  for (const figure of document.querySelectorAll("img, svg")) {
    if (!figure.matches("[alt], [aria-label], [aria-hidden]")) say("no words for a figure", figure);
  }
  for (const one of ["main", "h1"]) {
    const count = document.querySelectorAll(one).length;
    if (count !== 1) found.push(`${count} <${one}>`);
  }
  const levels = [...document.querySelectorAll("h1, h2, h3, h4")].filter(isShown).map((each) => +each.tagName[1]);
  if (levels.some((level, at) => level > (levels[at - 1] ?? 0) + 1)) found.push(`headings ${levels.join(" ")}`);
  const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) found.push(`id ${id} twice`);
  const names = [...document.querySelectorAll("nav")].map((each) => each.getAttribute("aria-label"));
  if (names.includes(null) || new Set(names).size < names.length) found.push(`navs ${names}`);
  for (const box of document.querySelectorAll(".scroll")) {
    const isReached = box.tabIndex >= 0 || box.querySelector("a, button");
    if (box.scrollWidth > box.clientWidth && !isReached) say("no key scrolls it", box);
  }
  return [...new Set(found)].slice(0, 8);
}
