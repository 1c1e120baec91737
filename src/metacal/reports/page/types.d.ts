// The one description of the numbers that the page gets: metacal.reports.summary.Summary.to_dict, and a title.
// Lists of a block belong together, entry by entry; what is undefined is null.

/** A number that may be undefined. */
export type Maybe = number | null;

export interface Data {
  title: string;
  format: number;
  source: Source;
  settings: Settings;
  promise: Promised | null;
  evaluation: Evaluation;
  calibration_metrics: CalibrationMetric[];
  quantity_names: QuantityNames;
  diagrams: Diagram[];
  curves: Curves;
  frontier: Frontier;
  sides: Sides | null;
  classes: Classes;
  cases: Cases | null;
  parts: Parts[];
  mistakes: Row[];
  hits: Row[];
  comparison: Comparison | null;
  methods: Methods;
}

/** Cases of a promise about cases, by how many of their items are accepted. */
export interface Cases {
  n_cases: number;
  /** Cases that are not counted because labels are missing. */
  n_left_out: number;
  n_all_accepted: number;
  n_some_accepted: number;
  n_none_accepted: number;
  /** Cases that break the promise. */
  n_broken: number;
  /** What they have, as "cases with an incorrect accepted item". */
  broken_text: string;
  /** Whether the promise is about true items that are missed. */
  is_recall: boolean;
  n_items: number;
  n_accepted: number;
  /** Accepted items that are incorrect. */
  n_incorrect: number;
  n_without_score: number;
  types: CaseTypes | null;
}

/** Items by type, the one with the most rejected items first. */
export interface CaseTypes {
  name: string[];
  n: number[];
  accepted: number[];
  incorrect: number[];
  /** Correct items that are rejected. */
  missed: number[];
  /** Cases that break the promise with an item of this type. */
  broken: number[];
  /** Of the score that is lower for surer items; null if all types share one. */
  threshold: (number | string | null)[];
  n_types: number;
}

export interface Source {
  file: string | null;
  artifact: string | null;
  sha256: string;
  hashed: string;
  n_rows: number;
  /** 0 where there are scores in place of logits. */
  n_classes: number;
  n_correct: number;
  /** Higher is less sure: "-mark" where a higher mark is surer. */
  score: string;
  /** Unit of the score, empty for a score of the user's own. */
  score_unit: string;
  calibrator: string | null;
  /** Rows that are left out. */
  n_without_score: number;
}

export interface Settings {
  level: number;
  delta: number;
  n_bins: number;
  n_resamples: number;
  seed: number;
}

/** What was measured keeps the promise; misses it, perhaps by chance; misses it with the whole interval; or rows of the fit are not judged. */
export type Word = "kept" | "undecided" | "refuted" | "not judged";

/** Rows that the gate was fitted on, among those of the report. */
export interface FitRows {
  n_fit_rows: number;
  n_rows: number;
  is_estimate: boolean;
}

export interface Promised {
  statement: string;
  certificate: [string, string][];
  threshold: number | string;
  assumptions: string[];
  notes: string[];
  verdicts: Verdict[];
  verdict: Word;
  advice: string;
  fit_rows: FitRows | null;
  next_steps: NextStep[];
  answered_by: Answerer[];
}

/** One who answers in a cascade: the small model, the large one, people. */
export interface Answerer {
  name: string;
  n_rows: number;
  /** Of all rows. */
  share: Estimate;
  /** Of the rows that it answers; not known of people. */
  accuracy: Estimate | null;
}

/** What these rows say of one promised quantity. */
export interface Verdict {
  quantity: string;
  /** Whether the target is a ceiling or a floor. */
  direction: "at most" | "at least";
  /** What the measured share is a share of, as the rest of a sentence. */
  counted: string;
  /** The target in words: 97%, or a cost; never more than is promised. */
  limit: string;
  /** Whether it is a mean cost, in the user's unit, and no share of rows. */
  mean: boolean;
  /** The curve of the operating points that shows it, where there is one of this name. */
  curve: string;
  target: number;
  value: Maybe;
  low: Maybe;
  high: Maybe;
  level: number;
  kept: boolean;
  refuted: boolean;
  verdict: Word;
  text: string;
}

/** An estimate and its interval. */
export interface Estimate {
  estimate: Maybe;
  low: Maybe;
  high: Maybe;
  level: number;
  method: string;
}

/** Name of each quantity of a gate, as every table and page prints it. */
export interface QuantityNames {
  coverage: string;
  miscoverage: string;
  selective_accuracy: string;
}

/** A row of the table of calibration metrics. */
export interface CalibrationMetric {
  name: string;
  title: string;
  /** Whether it is a share of the rows, shown in percent. */
  is_share: boolean;
}

export interface Evaluation {
  n_rows: number;
  n_accepted: number | null;
  n_classes: number;
  level: number;
  n_bins: number;
  /** Whether the probabilities of rejected rows are 1/K in every class, as in the paper. */
  is_paper_map: boolean;
  accepted_rows: Record<string, Estimate> | null;
  all_rows: Record<string, Estimate>;
  gate: Record<string, Estimate>;
  uncalibrated: { accepted_rows: Record<string, Maybe> | null; all_rows: Record<string, Maybe> } | null;
  /** Whether rows predicted as each class are right as often as is said. */
  marginal: Record<string, Maybe | string | boolean> | null;
  /** What calibration makes worse here, and by which predicted class it is off, in words. */
  calibration: string | null;
}

export type Stage = "before" | "after";
export type Binning = "equal_width" | "equal_mass";

export interface Diagram {
  stage: Stage;
  rows: "all" | "accepted";
  title: string;
  n_rows: number;
  accuracy: number;
  confidence: number;
  ece: Estimate;
  ece_equal_mass: Estimate;
  equal_width: Bins;
  equal_mass: Bins;
  histogram_edges: number[];
  histogram: number[];
}

/** Bin b is (edges[b], edges[b + 1]]. */
export interface Bins {
  edges: number[];
  count: number[];
  confidence: Maybe[];
  accuracy: Maybe[];
  low: Maybe[];
  high: Maybe[];
}

/** A curve and its simultaneous band. */
export interface Series {
  estimate: Maybe[];
  low: Maybe[];
  high: Maybe[];
}

export type CurveName = "coverage" | "accuracy" | "miscoverage";

export interface Curves {
  threshold: (number | string)[];
  accepted: number[];
  coverage: { estimate: number[]; low: Maybe[]; high: Maybe[] };
  accuracy: Series;
  miscoverage: Series;
  min_accuracy: Maybe[];
  max_miscoverage: Maybe[];
  /** Whether a point is certified by a command or by a promise in Python; null if by neither. */
  command_language: "shell" | "python" | null;
  command: string | null;
  command_end: string;
  current: number | null;
  delta: number;
  /** Each threshold as the command has it. */
  threshold_text: string[];
}

export interface Frontier {
  beta: number[];
  alpha: number[];
  threshold: (number | string)[];
  coverage: number[];
  delta: number;
}

/** Of two classes: what is called by either of them, at rising log-odds. */
export interface Sides {
  names: [string, string];
  n_rows: number;
  n_positive: number;
  threshold: number[];
  /** Number of rows at or below each threshold. */
  n_below: number[];
  recall: Series;
  false_positive_rate: Series;
  precision: Series;
  npv: Series;
  auroc: number;
  /** Index of the gate's lower threshold; -1 if it calls no row negative; null if there is none for all rows. */
  lower: number | null;
  /** Index of the gate's upper threshold; the number of thresholds if it calls no row positive. */
  upper: number | null;
  /** The gate's own numbers, whatever its thresholds. */
  gate: SidesOfGate | null;
  /** Whether the promise is about the sides. */
  is_two_sided: boolean;
  near: Near[];
  delta: number;
}

export interface SidesOfGate {
  called_positive: number;
  called_negative: number;
  precision: Maybe;
  npv: Maybe;
  recall: Maybe;
  caught: Maybe;
  false_positive_rate: Maybe;
}

/** Rows next to a threshold: the mean probability of the second class, and how many are of it. */
export interface Near {
  at: number;
  side: number;
  n_rows: number;
  stated: number;
  share: number;
  low: number;
  high: number;
}

export interface Classes {
  column: number[];
  name: string[];
  n: number[];
  accuracy: Maybe[];
  ece: Maybe[];
  coverage: Maybe[];
  miscoverage: Maybe[];
  selective_accuracy: Maybe[];
  /** The least that the miscoverage is, without a gate the error rate. */
  surely: Maybe[];
  n_classes: number;
  order: string;
}

/** What is accepted and how much of it is right, by predicted class or by group: the most evidence first. */
export interface Parts {
  by: "class" | "group";
  name: string[];
  n: number[];
  accepted: number[];
  right: number[];
  coverage: Series;
  accuracy: Series;
  miscoverage: Series;
  evidence: number[];
  /** Which of the three the evidence is about, and whether small is good. */
  judged: "coverage" | "accuracy" | "miscoverage";
  at_most: boolean;
  limit: number;
  /** Of whom the limit is promised; of none it is what all rows together have. */
  promised: "each" | "all" | "none";
  threshold: (number | string | null)[];
  n_parts: number;
}

export interface Row {
  row: number;
  id: string | null;
  label: string;
  predicted: string;
  score: number | string;
  confidence: Maybe;
  accepted: boolean | null;
}

export interface Comparison {
  n_rows: number;
  n_classes: number;
  n_splits: number;
  n_repeats: number;
  /** How many of them there was time for. */
  n_folds: number;
  metrics: ComparedMetric[];
  best: Record<string, string | null>;
  near_best: Record<string, string[]>;
  near_best_standard_errors: number;
  calibrators: (Compared | Failed)[];
}

export interface ComparedMetric {
  name: string;
  heading: string;
  smaller_is_better: boolean;
}

export interface Compared {
  name: string;
  fit_seconds: number;
  metrics: Record<string, { mean: Maybe; standard_error: Maybe }>;
}

export interface Failed {
  name: string;
  failed: string;
}

export interface Methods {
  definitions: [string, string][];
  versions: Record<string, string>;
}

// What the modules pass to each other.

export type Child = Node | string | number | null | undefined | false | Child[];

/** From data to pixels, and back. */
export interface Scale {
  (value: number): number;
  back(pixel: number): number;
}

export type Point = [number, number];

export interface Box {
  left: number;
  right: number;
  top: number;
  bottom: number;
}

export interface Size {
  width: number;
  height: number;
  id: string;
}

/** The plot: its two scales, the group to draw into, and its edges in pixels. */
export interface Frame extends Box {
  sx: Scale;
  sy: Scale;
  inside: SVGGElement;
}

export interface Axis {
  domain: [number, number];
  title?: string;
  ticks?: number[];
  /** Numbers as they are, and not in percent. */
  plain?: boolean;
  /** The text of a tick, in place of a number. */
  label?: (value: number) => string;
}

/** What to do next, with a command if there is one. */
export interface NextStep {
  text: string;
  command: string | null;
}

export interface AxesSpec {
  x: Axis;
  y: Axis;
  margin?: { top?: number; right?: number; bottom?: number; left?: number };
  clip?: boolean;
}

export interface ChartSpec {
  /** What the figure is called, for those who see it and for those who do not. */
  heading?: string;
  title?: string;
  description: string | (() => string);
  /** Under the heading: a line of text, or an element that changes. */
  note?: string | HTMLElement;
  /** What the dashed lines mean. */
  key?: string[];
  drag?: boolean;
  height(width: number): number;
  paint(svg: SVGSVGElement, size: Size): void;
}

/** A chart that stands: its figure, the element that holds the SVG, and how to draw it again. */
export interface Chart {
  figure: HTMLElement;
  holder: HTMLDivElement;
  render(): void;
}

/** A place that can be read off a curve, in pixels, and what it says: a line in bold and more below. */
export interface Reading {
  x: number;
  y: number;
  lines: string[];
}

export interface Column<T> {
  head: string;
  cell(row: T): Child;
  key?: keyof T & string;
  /** The heading of its row. */
  name?: boolean;
  number?: boolean;
  words?: boolean;
}

export interface Order<T> {
  key: keyof T & string;
  descending: boolean;
}

/** Where the operating point is, who follows it, and how to move it. */
export interface OperatingPoint {
  at: number;
  last: number;
  /** Whether the numbers are those of the gate itself, which has several thresholds or accepts no row. */
  isGate: boolean;
  listen(listener: () => void): void;
  move(at: number): void;
  /** Go back to the gate's own threshold or thresholds. */
  reset(): void;
}

/** What is measured at an operating point, with its bounds. */
export interface Measured {
  estimate: Maybe;
  low: Maybe;
  high: Maybe;
}

export interface PointNumbers {
  coverage: Measured;
  accuracy: Measured;
  miscoverage: Measured;
  review: Measured;
}
