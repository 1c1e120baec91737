// Tables of many columns: on a phone each row becomes a list, and each cell says which column it is (site.css).
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll(".bd-article table.table")) {
    const heads = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
    if (heads.length < 4) continue;
    table.classList.add("many");
    for (const row of table.querySelectorAll("tbody tr"))
      [...row.cells].forEach((cell, k) => (cell.dataset.column = heads[k] ?? ""));
  }
});
