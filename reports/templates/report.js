"use strict";
(() => {
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

  // --- searching ---
  for (const input of document.querySelectorAll("input[data-table]"))
    input.addEventListener("input", () => {
      closeDetail();
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of document.getElementById(input.dataset.table).tBodies[0].rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
    });

  // --- a cell's figures ---
  const details = JSON.parse(document.getElementById("details").textContent);
  const absentText = "–";
  const figure = (value, unit) => {
    if (value === null) return absentText;
    if (unit !== "B") return `${value.toLocaleString("en", { maximumSignificantDigits: 6 })}${unit === "1" ? "" : " " + unit}`;
    const steps = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];
    const [size, name] = steps.find(([least]) => Math.abs(value) >= least) ?? [1, "B"];
    const exact = `${value.toLocaleString("en")} B`;
    return size === 1 ? exact : `${(value / size).toFixed(Math.abs(value) / size >= 10 ? 1 : 2)} ${name} (${exact})`;
  };
  const element = (name, text, look) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (look) made.className = look;
    return made;
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
  const figuresOf = (arms) => {
    const names = Object.keys(arms);
    const byArm = names.map((name) => new Map(arms[name].rows.map((row) => [row[0], row])));
    const all = [...new Set(byArm.flatMap((rows) => [...rows.keys()]))];
    all.sort((a, b) => compare(details.metrics[a][0], details.metrics[b][0]));
    return tableOf(["metric", ...names.flatMap((name) => [name, `${name}, predicted`])], all.map((metric) => {
      const [text, unit] = details.metrics[metric];
      return [element("td", text, "code"), ...byArm.flatMap((rows) => [1, 2].map((at) => valueCell(rows.get(metric), at, unit)))];
    }));
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
    place.append(figuresOf(cell.arms));
    for (const [name, arm] of Object.entries(cell.arms))
      if (arm.retained.length)
        place.append(element("p", `Still held after backward, ${name}:`),
                     tableOf(["holder", "bytes"], arm.retained.map(holderRow)));
    row.after(detail);
    row.classList.add("chosen");
    open = { row, detail };
  };
  const follow = () => {
    let name;
    try {
      name = decodeURIComponent(location.hash.slice(1));
    } catch {
      return;
    }
    if (!Object.hasOwn(details.cells, name)) return;
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
