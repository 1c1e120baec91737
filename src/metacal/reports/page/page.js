// Read the numbers, fill the sections, offer the numbers for download.
/** @import { Data } from "./types.js" */
import { casesSection } from "./cases.js";
import { drawAll } from "./chart.js";
import { byId, make, put } from "./dom.js";
import { count } from "./format.js";
import { frontierChart } from "./frontier.js";
import { headline } from "./headline.js";
import { operating } from "./operating.js";
import { partsSection } from "./parts.js";
import { unfoldForPrint } from "./print.js";
import { honesty } from "./reliability.js";
import { sidesSection } from "./sides.js";
import { classSection, comparisonSection, methodsSection, rowSection } from "./sections.js";

function start() {
  /** @type {Data} */
  const data = JSON.parse(byId("summary").textContent ?? "");
  document.body.append(make("p", { id: "said", role: "status", class: "skip" }));
  headOf(data);
  headline(data);
  // The items of cases have a threshold for each type. A promise about the sides has two thresholds of the log-odds, and none on a score of all rows.
  const hasOneThreshold = !data.sides?.is_two_sided && data.cases === null;
  for (const id of ["point", "frontier"]) byId(id).hidden = !hasOneThreshold;
  if (hasOneThreshold) operating(data);
  sidesSection(data);
  casesSection(data);
  honesty(data);
  if (hasOneThreshold) frontierChart(data);
  partsSection(data);
  classSection(data);
  rowSection(data);
  comparisonSection(data);
  methodsSection(data);
  linksToSections();
  drawAll();
  unfoldForPrint();
  byId("download").addEventListener("click", () => download(data));
  document.documentElement.dataset.ready = "true";
}

/** @param {Data} data */
function headOf({ cases, source, title }) {
  put("title", title);
  const files = [source.file, source.artifact].filter(Boolean).join(" through ");
  put(
    "facts",
    [
      cases ? `${count(cases.n_cases)} cases · ${count(cases.n_items)} items` : `${count(source.n_rows)} rows`,
      source.n_without_score && `${count(source.n_without_score)} without a score ${cases ? "rejected" : "left out"}`,
      source.n_classes && `${count(source.n_classes)} classes`,
      files,
      source.calibrator,
    ]
      .filter(Boolean)
      .join(" · "),
  );
}

/** The way to each section that is there. */
function linksToSections() {
  const sections = [...document.querySelectorAll("main > section:not([hidden])")].slice(1);
  put(
    "sections",
    sections.map((section) =>
      make("li", {}, make("a", { href: `#${section.id}` }, section.querySelector("h2")?.textContent)),
    ),
  );
}

/**
 * A blob and a link: works from a file and asks nobody.
 * @param {Data} data
 */
function download(data) {
  const blob = new Blob([`${JSON.stringify(data, null, 1)}\n`], { type: "application/json" });
  const link = make("a", { href: URL.createObjectURL(blob), download: "metacal-report.json" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

start();
