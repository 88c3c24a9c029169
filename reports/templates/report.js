"use strict";
(() => {
  // Lines break in names after `_`, `/`, `=`, and after `.` and `,` before a letter, as in the rows that page.py writes.
  const breakable = (text) => text.split(/(?<=[_/=])(?=[\p{L}\p{N}_])|(?<=[.,])(?=[A-Za-z])/u)
    .flatMap((part, at) => (at ? [document.createElement("wbr"), part] : [part]));
  const element = (name, text, look) => {
    const made = document.createElement(name);
    if (text !== undefined) made.append(...breakable(String(text)));
    if (look) made.className = look;
    return made;
  };

  // --- light and dark ---
  const root = document.documentElement;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });

  // --- sorting: by value in columns with figures; absent figures come last in both directions ---
  const keyOf = (cell) => ("n" in cell.dataset ? Number(cell.dataset.n) : cell.dataset.t ?? cell.textContent);
  const isAbsent = (cell) => cell.classList.contains("absent");
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  const sort = (table, column, header) => {
    const descending = header.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", descending ? "descending" : "ascending");
    closeDetail();
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => ({ row, cell: row.cells[column] }));
    rows.sort((a, b) => {
      const absent = isAbsent(a.cell) - isAbsent(b.cell);
      return absent || (descending ? -1 : 1) * compare(keyOf(a.cell), keyOf(b.cell));
    });
    body.append(...rows.map(({ row }) => row));
  };
  for (const table of document.querySelectorAll("table.sortable"))
    [...table.tHead.rows[0].cells].forEach((header, column) =>
      header.firstElementChild.addEventListener("click", () => sort(table, column, header)));

  // --- what is drawn when it is needed ---
  const bulk = (async () => {
    const packed = Uint8Array.from(atob(document.getElementById("bulk").textContent), (byte) => byte.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  })();
  const entryOf = ([text, look, link, note, sort]) => {
    const cell = element("td", link ? undefined : text, look || undefined);
    if (link) {
      const anchor = element("a", text);
      anchor.href = link;
      cell.append(anchor);
    }
    if (note) cell.title = note;
    if (typeof sort === "number") cell.dataset.n = sort;
    else if (sort !== undefined && sort !== null) cell.dataset.t = sort;
    return cell;
  };
  const drawSection = async (section) => {
    const { figures, tables } = await bulk;
    for (const place of section.querySelectorAll("[data-plot]")) {
      place.innerHTML = figures[place.dataset.plot];
      delete place.dataset.plot;
      place.style.aspectRatio = "auto";
    }
    for (const table of section.querySelectorAll("table[data-rows]")) {
      if (table.tBodies[0].rows.length) continue;
      const { rows, anchors } = tables[table.id.replace("table-", "")];
      table.tBodies[0].append(...rows.map((entries, i) => {
        const row = element("tr");
        if (anchors.length) row.id = anchors[i];
        row.append(...entries.map(entryOf));
        return row;
      }));
    }
    for (const place of section.querySelectorAll(".search:not(.ready)")) prepareSearch(place);
  };
  const sections = [...document.querySelectorAll("main > section")];
  const drawAll = () => Promise.all(sections.map(drawSection));
  const watcher = new IntersectionObserver((seen) => {
    for (const { isIntersecting, target } of seen)
      if (isIntersecting) {
        watcher.unobserve(target);
        drawSection(target);
      }
  }, { rootMargin: "600px" });
  for (const section of sections) watcher.observe(section);
  addEventListener("beforeprint", drawAll);
  document.fp8labDrawAll = drawAll; // for tests, and for scripts that save the page as it is drawn

  // --- searching, and choosing by a column's values ---
  const prepareSearch = (place) => {
    place.classList.add("ready");
    const rows = [...document.getElementById(place.dataset.table).tBodies[0].rows];
    const input = place.querySelector("input"), choices = [...place.querySelectorAll("select")];
    for (const choice of choices) {
      const values = [...new Set(rows.map((row) => row.cells[choice.dataset.column].textContent))].sort();
      for (const value of values) choice.append(new Option(value, value));
      choice.parentElement.hidden = values.length < 2;
    }
    const filter = () => {
      closeDetail();
      const words = (input?.value ?? "").toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = words.length ? row.textContent.toLowerCase() + " " + (row.cells[1].title ?? "") : "";
        row.hidden = !words.every((word) => text.includes(word)) ||
          !choices.every((choice) => !choice.value || row.cells[choice.dataset.column].textContent === choice.value);
        shown += !row.hidden;
      }
      place.querySelector("output").textContent = shown === rows.length ? "" : `${shown} of ${rows.length}`;
    };
    for (const one of [input, ...choices]) one?.addEventListener("input", filter);
  };

  // --- a cell's figures ---
  let details;
  const absentText = "–";
  const figure = (value, unit) => {
    if (value === null) return absentText;
    if (unit !== "B") return `${value.toLocaleString("en", { maximumSignificantDigits: 6 })}${unit === "1" ? "" : " " + unit}`;
    const steps = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];
    const [size, name] = steps.find(([least]) => Math.abs(value) >= least) ?? [1, "B"];
    const exact = `${value.toLocaleString("en")} B`;
    return size === 1 ? exact : `${(value / size).toFixed(Math.abs(value) / size >= 10 ? 1 : 2)} ${name} (${exact})`;
  };
  const tableOf = (columns, rows) => {
    const table = element("table");
    const head = table.createTHead().insertRow();
    for (const column of columns) head.append(element("th", column));
    const body = table.createTBody();
    for (const row of rows) body.insertRow().append(...row);
    return table;
  };
  const valueCell = (row, at, unit) => {
    const made = element("td", row ? figure(row[at], unit) : absentText, row && row[at] !== null ? "number" : "absent");
    if (row && row[1] === null && row.length > 3) made.title = details.reasons[row[3]];
    return made;
  };
  const gateRow = ([text, pass, observed, limit, why]) => [
    element("td", text, "code"),
    element("td", pass === null ? "undecided" : pass ? "yes" : "no", pass ? "good" : "bad"),
    ...[observed, limit].map((value) => element("td", value === null ? absentText : value.toLocaleString("en"), "number")),
    element("td", why),
  ];
  const holderRow = ([holder, bytes]) => [element("td", holder, "code"), element("td", figure(bytes, "B"), "number")];
  // Before minus after, where both are there.
  const differenceCell = (before, after, unit) => {
    const both = before && after && typeof before[1] === "number" && typeof after[1] === "number";
    return element("td", both ? figure(before[1] - after[1], unit) : absentText, both ? "number" : "absent");
  };
  const figuresOf = (arms) => {
    const names = Object.keys(arms), differ = "before" in arms && "after" in arms;
    const byArm = names.map((name) => new Map(arms[name].rows.map((row) => [row[0], row])));
    const all = [...new Set(byArm.flatMap((rows) => [...rows.keys()]))];
    all.sort((a, b) => compare(details.metrics[a][0], details.metrics[b][0]));
    const columns = ["metric", ...(differ ? ["before − after"] : []), ...names.flatMap((name) => [name, `${name}, predicted`])];
    return tableOf(columns, all.map((metric) => {
      const [text, unit] = details.metrics[metric];
      const [before, after] = ["before", "after"].map((name) => byArm[names.indexOf(name)]?.get(metric));
      return [element("td", text, "code"), ...(differ ? [differenceCell(before, after, unit)] : []),
              ...byArm.flatMap((rows) => [1, 2].map((at) => valueCell(rows.get(metric), at, unit)))];
    }));
  };
  // Losses of all arms as lines over the steps.
  const lossesOf = (arms) => {
    const lines = Object.entries(arms).map(([name, arm]) => [name, arm.losses.filter((loss) => typeof loss === "number")])
      .filter(([, losses]) => losses.length > 1);
    if (!lines.length) return [];
    const all = lines.flatMap(([, losses]) => losses), low = Math.min(...all), high = Math.max(...all);
    const space = "http://www.w3.org/2000/svg", svg = document.createElementNS(space, "svg");
    svg.setAttribute("viewBox", "0 0 400 110");
    svg.setAttribute("class", "losses");
    lines.forEach(([name, losses]) => {
      const line = document.createElementNS(space, "polyline");
      const x = (at) => (400 * at) / (losses.length - 1), y = (loss) => 105 - (100 * (loss - low)) / (high - low || 1);
      line.setAttribute("points", losses.map((loss, at) => `${x(at).toFixed(1)},${y(loss).toFixed(1)}`).join(" "));
      line.setAttribute("class", `line-${name}`);
      svg.append(line);
    });
    const short = (loss) => loss.toLocaleString("en", { maximumSignificantDigits: 5 });
    const text = lines.map(([name, losses]) => `${name} ${short(losses[0])} to ${short(losses.at(-1))}`).join(", ");
    return [element("p", `Losses, first to last step: ${text}`), svg];
  };
  let open = null;
  const closeDetail = () => {
    if (!open) return;
    open.row.classList.remove("chosen");
    open.detail.remove();
    open = null;
  };
  const show = (row, cell) => {
    const detail = element("tr", undefined, "detail");
    const place = detail.appendChild(element("td"));
    place.colSpan = row.cells.length;
    place.append(element("p", cell.title));
    for (const [name, arm] of Object.entries(cell.arms))
      if (arm.status !== "ok") place.append(element("p", `${name} ended: ${arm.status}${arm.reason && ", " + arm.reason}`, "bad"));
    if (cell.gates.length)
      place.append(tableOf(["gate", "holds", "observed", "limit", ""], cell.gates.map(gateRow)));
    place.append(...lossesOf(cell.arms), figuresOf(cell.arms));
    for (const [name, arm] of Object.entries(cell.arms))
      if (arm.retained.length)
        place.append(element("p", `Still held after backward, ${name}:`),
                     tableOf(["holder", "bytes"], arm.retained.map(holderRow)));
    if (cell.notes) {
      place.append(element("p", "Notes:"));
      const list = place.appendChild(element("ul"));
      for (const [note, names] of cell.notes) list.append(element("li", `${details.reasons[note]} (${names})`));
      if (cell.more_notes) list.append(element("li", `and ${cell.more_notes} more in the results`));
    }
    row.after(detail);
    row.classList.add("chosen");
    open = { row, detail };
  };
  const follow = async () => {
    let name;
    try {
      name = decodeURIComponent(location.hash.slice(1));
    } catch {
      return;
    }
    if (!name.startsWith("cell/")) return;
    ({ details } = await bulk);
    if (!Object.hasOwn(details.cells, name)) return;
    await drawSection(document.getElementById("cells"));
    closeDetail();
    const row = document.getElementById(name);
    row.hidden = false;
    show(row, details.cells[name]);
    row.scrollIntoView({ block: "start" });
  };
  addEventListener("hashchange", follow);
  // A click on the open cell closes it.
  document.getElementById("table-cells")?.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (link && open && link.closest("tr") === open.row) {
      event.preventDefault();
      closeDetail();
      history.replaceState(null, "", location.pathname + location.search);
    }
  });
  follow();
})();
