/** Times and figures as people of each language write them. */

import { language, t } from '../i18n';

export function ago(at: string, now = Date.now()): string {
  const seconds = (now - Date.parse(at)) / 1000;
  if (!Number.isFinite(seconds)) return '';
  if (seconds < 45) return t('now');
  const format = new Intl.RelativeTimeFormat(language.value, { numeric: 'auto', style: 'narrow' });
  if (seconds < 3600) return format.format(-Math.round(seconds / 60), 'minute');
  if (seconds < 86_400) return format.format(-Math.round(seconds / 3600), 'hour');
  if (seconds < 7 * 86_400) return format.format(-Math.round(seconds / 86_400), 'day');
  return new Intl.DateTimeFormat(language.value, { day: 'numeric', month: 'short' }).format(Date.parse(at));
}

export function moment(at: string): string {
  const time = Date.parse(at);
  if (!Number.isFinite(time)) return '';
  return new Intl.DateTimeFormat(language.value, { dateStyle: 'medium', timeStyle: 'medium' }).format(time);
}

export function duration(from: string | undefined, to: string | undefined): string {
  const ms = Date.parse(to ?? '') - Date.parse(from ?? '');
  if (!Number.isFinite(ms) || ms < 0) return '';
  if (ms < 1000) return `${ms} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}

export function figure(value: number): string {
  return new Intl.NumberFormat(language.value, { notation: value >= 10_000 ? 'compact' : 'standard' }).format(value);
}

export function dollars(value: number): string {
  const digits = value !== 0 && value < 0.01 ? 4 : 2;
  return new Intl.NumberFormat(language.value, {
    style: 'currency',
    currency: 'USD',
    minimumFractionDigits: 2,
    maximumFractionDigits: digits,
  }).format(value);
}

export function bytes(size: number): string {
  if (size < 1024) return `${size} B`;
  return size < 1024 * 1024 ? `${Math.round(size / 1024)} kB` : `${(size / 1024 / 1024).toFixed(1)} MB`;
}
