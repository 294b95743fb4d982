/** Usage by day as stacked bars, one colour per model or principal. */

export interface UsageItem {
  day: string;
  model: string;
  principal: string;
  steps: number;
  input_tokens: number;
  output_tokens: number;
  total_tokens: number;
  cost: number;
}

export type Dimension = 'model' | 'principal';
export type Measure = 'cost' | 'total_tokens';

export interface Bar {
  day: string;
  total: number;
  pieces: { name: string; value: number }[];
}

export interface Chart {
  names: string[];
  bars: Bar[];
  highest: number;
}

const MOST_NAMES = 6; // the rest is summed up as one

export function chartOf(items: readonly UsageItem[], first: string, last: string, by: Dimension, measure: Measure): Chart {
  const sums = sumsBy(items, by, measure);
  const names = sums.slice(0, MOST_NAMES).map((each) => each.name);
  if (sums.length > MOST_NAMES) names.push('…');
  const bars = daysBetween(first, last).map((day) => barOf(day, items, names, by, measure));
  return { names, bars, highest: Math.max(...bars.map((each) => each.total), 0) };
}

/** The largest first. */
export function sumsBy(items: readonly UsageItem[], by: Dimension, measure: Measure): { name: string; value: number }[] {
  const sums = new Map<string, number>();
  for (const each of items) sums.set(each[by], (sums.get(each[by]) ?? 0) + (each[measure] ?? 0));
  return [...sums].map(([name, value]) => ({ name, value })).sort((a, b) => b.value - a.value);
}

function barOf(day: string, items: readonly UsageItem[], names: string[], by: Dimension, measure: Measure): Bar {
  const values = new Map<string, number>();
  for (const each of items) {
    if (each.day !== day) continue;
    const name = names.includes(each[by]) ? each[by] : '…';
    values.set(name, (values.get(name) ?? 0) + (each[measure] ?? 0));
  }
  const pieces = names.map((name) => ({ name, value: values.get(name) ?? 0 }));
  return { day, total: pieces.reduce((sum, each) => sum + each.value, 0), pieces };
}

export function daysBetween(first: string, last: string): string[] {
  const days: string[] = [];
  for (let at = Date.parse(first); at <= Date.parse(last) && days.length < 400; at += 86_400_000) {
    days.push(new Date(at).toISOString().slice(0, 10));
  }
  return days;
}
