// Tables of many columns: on a phone each row becomes a list, and each cell says which column it is (site.css).
function nameTheCells(root) {
  for (const table of root.querySelectorAll(".bd-article table.table")) {
    const heads = [...table.querySelectorAll("thead th")];
    // A heading that says nothing is none, to those who hear the table.
    for (const head of heads) if (!head.textContent.trim()) head.replaceWith(document.createElement("td"));
    if (heads.length < 4) continue;
    table.classList.add("many");
    for (const row of table.querySelectorAll("tbody tr"))
      [...row.cells].forEach((cell, k) => (cell.dataset.column = heads[k]?.textContent.trim() ?? ""));
  }
}

// The theme's unnamed switch of a list in the sidebar, and a search button that is named otherwise than it reads.
function nameTheButtons() {
  for (const summary of document.querySelectorAll(".bd-sidenav summary"))
    summary.setAttribute("aria-label", `Pages below ${summary.closest("li")?.querySelector("a")?.textContent ?? ""}`);
  for (const button of document.querySelectorAll(".search-button-field"))
    button.setAttribute("aria-label", button.innerText.replace(/\s+/g, " ").trim() || "Search");
}

document.addEventListener("DOMContentLoaded", () => {
  nameTheCells(document);
  nameTheButtons();
});
