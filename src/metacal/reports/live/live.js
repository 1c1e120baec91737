// Look every second, show what has changed, say it when an alarm is raised.
/** @import { Seen, State } from "./state.js" */
import { drawAll } from "./chart.js";
import { announce, byId, make, put } from "./dom.js";
import { evidenceCharts } from "./evidence.js";
import { answer } from "./answer.js";
import { classTable } from "./classtable.js";
import { trafficCharts } from "./traffic.js";

/** Milliseconds between two looks. */
const EVERY = 1000;

async function look() {
  const response = await fetch("state.json", { cache: "no-store" });
  if (!response.ok) throw new Error(String(response.status));
  return /** @type {Promise<State>} */ (response.json());
}

/** @param {Seen} seen */
function pulse({ state, lost }) {
  const words = lost ? "The monitor has ended." : state.ended ? "The stream has ended." : "Live";
  put("pulse", make("span", { class: lost ? "pulse-lost" : null }, words));
  const file = state.file === "-" ? "standard input" : state.file?.split(/[\\/]/).pop();
  const files = [file, state.artifact].filter(Boolean).join(" through ");
  put("facts", files);
}

/**
 * Say what was raised since the last look.
 * @param {State | null} before
 * @param {State} now
 */
function tell(before, now) {
  const fresh = now.alarms.filter((alarm) => alarm.raised && !before?.raised.includes(alarm.name));
  const words = fresh.map((alarm) => alarm.meaning);
  if (now.silence?.raised && !before?.silence?.raised) words.push("no rows are coming in");
  if (words.length) announce(`Alarm: ${words.join("; ")}.`);
}

async function run() {
  const seen = { state: await look(), lost: false };
  const evidence = evidenceCharts(seen);
  const traffic = trafficCharts(seen);
  const show = () => {
    pulse(seen);
    answer(seen.state);
    evidence();
    traffic();
    classTable(seen.state);
  };
  show();
  drawAll();
  tell(null, seen.state);
  document.documentElement.dataset.ready = "true";
  const again = async () => {
    const before = seen.state;
    try {
      seen.state = await look();
      seen.lost = false;
    } catch {
      seen.lost = true;
    }
    const same = JSON.stringify(before) === JSON.stringify(seen.state);
    if (same) pulse(seen);
    else show();
    tell(before, seen.state);
    byId("main").dataset.rows = String(seen.state.rows);
    // Whoever has gone does not come back at this address: asking on would only fill the console.
    if (!seen.lost) setTimeout(again, EVERY);
  };
  setTimeout(again, EVERY);
}

run();
