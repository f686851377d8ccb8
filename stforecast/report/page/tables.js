// Tables that sort: by the number that an entry begins with, or by its text.

function sortKey(text) {
  const number = parseFloat(text.replaceAll(",", "").replace(/^[^\d+.-]+(?=\d)/, ""));
  return /^[<\d+.-]/.test(text) && Number.isFinite(number) ? number : null;
}

function compareTexts(a, b, sign) {
  const [x, y] = [sortKey(a), sortKey(b)];
  if (a === "-" || b === "-") return (a === "-") - (b === "-");
  if (x !== null && y !== null && x !== y) return sign * (x - y);
  return sign * a.localeCompare(b, "en", { numeric: true });
}

function sortBy(table, column) {
  const heads = [...table.tHead.rows[0].cells];
  const head = heads[column];
  const upwards = head.getAttribute("aria-sort") !== "ascending";
  const body = table.tBodies[0];
  const rows = [...body.rows].sort((a, b) =>
    compareTexts(a.cells[column].textContent.trim(), b.cells[column].textContent.trim(), upwards ? 1 : -1));
  heads.forEach((one) => one.setAttribute("aria-sort", "none"));
  head.setAttribute("aria-sort", upwards ? "ascending" : "descending");
  body.append(...rows);
}

function sortTables() {
  for (const table of document.querySelectorAll("table")) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => sortBy(table, column));
    });
  }
}

// Fades the edge of a table that goes on beside it.
function showMore() {
  for (const box of document.querySelectorAll(".scroll")) {
    const look = () => box.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
    box.addEventListener("scroll", look);
    new ResizeObserver(look).observe(box);
  }
}
