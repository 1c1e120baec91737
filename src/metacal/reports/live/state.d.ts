// What /state.json holds: metacal.reports.status writes it, a test keeps the two in step.
import type { NextStep } from "./types.js";

export type Maybe = number | null;

export interface State {
  artifact: string | null;
  file: string | null;
  ended: boolean;
  promise: string | null;
  /** The promise, as it stands now: under an alarm it is no fact any more. */
  headline: string;
  levels: string;
  alarm: boolean;
  raised: string[];
  rows: number;
  accepted: number;
  coverage: Maybe;
  labelled: number;
  labelled_accepted: number;
  correct_accepted: number;
  selective_accuracy: Maybe;
  /** Whether labels say that a prediction is the last model's, and not that it is correct. */
  agreement: boolean;
  waiting: number;
  unknown: number;
  forgotten: number;
  horizon: number;
  unlabelled: number;
  units: { complete: number; strays: number; are_cases: boolean } | null;
  lines: number;
  unreadable: number;
  quarantine: string | null;
  gaps: number;
  silence: Silence | null;
  estimate: Estimate | null;
  alarms: Alarm[];
  acknowledged: Acknowledged[];
  next_steps: NextStep[];
  missing: Missing[];
  history: History;
  classes: OneClass[];
}

export interface Estimate {
  accuracy: number;
  low: number;
  high: number;
  level: number;
  n_rows: number;
  n_accepted: number;
  basis: string;
}

/** Seconds without anything that are an alarm, whether it is raised now, and how often it was. */
export interface Silence {
  after: number;
  raised: boolean;
  times: number;
}

export interface Alarm {
  name: string;
  meaning: string;
  raised: boolean;
  at_row: Maybe;
  delta: number;
  log_evidence: number;
  log_peak: number;
  log_needed: number;
  seen: string[];
}

/** Alarms that were acknowledged together: what was found and done, when, after how many rows. */
export interface Acknowledged {
  at_row: number;
  time: string;
  reason: string;
  alarms: { name: string; meaning: string; at_row: number; log_peak: number; seen: string[] }[];
}

export interface Missing {
  name: string;
  why: string;
}

export interface History {
  rows: number[];
  accepted: number[];
  labelled_accepted: number[];
  correct_accepted: number[];
  evidence: Record<string, number[]>;
}

export interface OneClass {
  name: string;
  rows: number;
  accepted: number;
  labelled: number;
  labelled_accepted: number;
  correct_accepted: number;
}

/** What the script holds between two looks: the last state, and whether the last look was answered. */
export interface Seen {
  state: State;
  lost: boolean;
}
