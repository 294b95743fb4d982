import { useEffect, useState } from 'preact/hooks';

import { act, service } from '../app/store';
import { t } from '../i18n';
import { chartOf, type Dimension, type Measure, sumsBy, type UsageItem } from '../state/usage';
import { dollars, figure } from './format';
import { Empty, Page, Raw } from './parts';

interface Usage {
  first_day: string;
  last_day: string;
  items: UsageItem[];
  total: Record<string, number>;
  budgets: unknown[];
}

const RANGES = [7, 30, 90];

export function UsagePage() {
  const [days, setDays] = useState(30);
  const [by, setBy] = useState<Dimension>('model');
  const [measure, setMeasure] = useState<Measure>('cost');
  const [usage, setUsage] = useState<Usage>();
  useEffect(() => {
    const from = new Date(Date.now() - (days - 1) * 86_400_000).toISOString().slice(0, 10);
    void act((it) => it.call<Usage>('opencode.usage.get', { from, by: ['day', 'model', 'principal'] })).then(setUsage);
  }, [days, service.value]);
  return (
    <Page
      title={t('page.usage')}
      actions={
        <>
          <Choice label={t('period')} value={String(days)} change={(value) => setDays(Number(value))}
            options={RANGES.map((each) => [String(each), t('lastDays', { n: each })])} />
          <Choice label={t('by')} value={by} change={(value) => setBy(value as Dimension)}
            options={[['model', t('model')], ['principal', t('principal')]]} />
          <Choice label={t('measure')} value={measure} change={(value) => setMeasure(value as Measure)}
            options={[['cost', t('cost')], ['total_tokens', t('tokens')]]} />
        </>
      }
    >
      {usage && <Totals total={usage.total} />}
      {usage && usage.items.length > 0 ? (
        <Charts usage={usage} by={by} measure={measure} />
      ) : (
        usage && <Empty icon="chart" title={t('noUsage')} />
      )}
      {usage && usage.budgets.length > 0 && (
        <>
          <h2>{t('budgets')}</h2>
          <Raw value={usage.budgets} />
        </>
      )}
    </Page>
  );
}

interface ChoiceProps {
  label: string;
  value: string;
  options: [string, string][];
  change(value: string): void;
}

function Choice({ label, value, options, change }: ChoiceProps) {
  return (
    <select aria-label={label} value={value} onChange={(event) => change(event.currentTarget.value)}>
      {options.map(([each, name]) => (
        <option key={each} value={each}>
          {name}
        </option>
      ))}
    </select>
  );
}

function Totals({ total }: { total: Record<string, number> }) {
  const tiles: [string, string][] = [
    [t('cost'), dollars(total.cost ?? 0)],
    [t('inputTokens'), figure(total.input_tokens ?? 0)],
    [t('outputTokens'), figure(total.output_tokens ?? 0)],
    [t('steps'), figure(total.steps ?? 0)],
  ];
  return (
    <dl class="tiles">
      {tiles.map(([name, value]) => (
        <div key={name} class="tile">
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

const WIDTH = 720;
const HEIGHT = 220;

function Charts({ usage, by, measure }: { usage: Usage; by: Dimension; measure: Measure }) {
  const chart = chartOf(usage.items, usage.first_day, usage.last_day, by, measure);
  const show = measure === 'cost' ? dollars : figure;
  const step = WIDTH / Math.max(chart.bars.length, 1);
  return (
    <section class="card chart">
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT + 24}`} role="img" aria-label={t('usageByDay')}>
        {[0, 0.5, 1].map((share) => (
          <g key={share}>
            <line class="grid" x1={0} x2={WIDTH} y1={HEIGHT - share * (HEIGHT - 16)} y2={HEIGHT - share * (HEIGHT - 16)} />
            <text class="axis" x={0} y={HEIGHT - share * (HEIGHT - 16) - 4}>
              {show(chart.highest * share)}
            </text>
          </g>
        ))}
        {chart.bars.map((bar, at) => {
          let top = HEIGHT;
          return (
            <g key={bar.day}>
              <title>{`${bar.day}: ${show(bar.total)}`}</title>
              {bar.pieces.map((piece, index) => {
                const height = chart.highest ? (piece.value / chart.highest) * (HEIGHT - 16) : 0;
                top -= height;
                return <rect key={piece.name} class={`series-${index}`} x={at * step + step * 0.15} y={top} width={step * 0.7} height={height} rx={2} />;
              })}
              {at % Math.ceil(chart.bars.length / 8) === 0 && (
                <text class="axis" x={Math.max(at * step + step / 2, 16)} y={HEIGHT + 18} text-anchor="middle">
                  {bar.day.slice(5)}
                </text>
              )}
            </g>
          );
        })}
      </svg>
      <table class="legend">
        <tbody>
          {sumsBy(usage.items, by, measure).map(({ name, value }, at) => (
            <tr key={name}>
              <td>
                <span class={`swatch series-${Math.min(at, 6)}`} aria-hidden="true" />
                {name}
              </td>
              <td class="right">{show(value)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
