/** A form for a JSON Schema: its fields, and the value that they stand for. */

export type Schema = Record<string, unknown>;

export interface Field {
  /** Where the value goes: `request.title`. */
  path: string;
  required: boolean;
  hint: string;
  kind: 'text' | 'number' | 'boolean' | 'choice' | 'json';
  choices: string[];
}

const DEEPEST = 4;

export function fieldsOf(schema: Schema, root: Schema): Field[] {
  return walk(schema, root, '', 0);
}

function walk(given: Schema, root: Schema, prefix: string, depth: number): Field[] {
  const schema = resolve(given, root);
  const required = new Set((schema.required as string[] | undefined) ?? []);
  const properties = (schema.properties ?? {}) as Record<string, Schema>;
  return Object.entries(properties).flatMap(([name, raw]) => {
    const inner = resolve(raw, root);
    const path = prefix ? `${prefix}.${name}` : name;
    if (inner.properties && depth < DEEPEST) return walk(inner, root, path, depth + 1);
    return [fieldOf(inner, path, required.has(name) && !prefix, String(raw.description ?? inner.description ?? ''))];
  });
}

function fieldOf(schema: Schema, path: string, required: boolean, hint: string): Field {
  const choices = ((schema.enum as unknown[] | undefined) ?? (schema.const === undefined ? [] : [schema.const])).map(String);
  if (choices.length) return { path, required, hint, kind: 'choice', choices };
  const kinds: Record<string, Field['kind']> = { string: 'text', integer: 'number', number: 'number', boolean: 'boolean' };
  return { path, required, hint, kind: kinds[String(schema.type)] ?? 'json', choices: [] };
}

/** Follow references, and the one alternative that is not null. */
function resolve(schema: Schema, root: Schema): Schema {
  let current = schema;
  for (let step = 0; step < 20; step += 1) {
    const reference = current.$ref;
    const alternatives = ((current.anyOf ?? current.oneOf ?? current.allOf) as Schema[] | undefined)?.filter(
      (each) => each.type !== 'null',
    );
    if (typeof reference === 'string') current = lookUp(reference, root);
    else if (alternatives?.length === 1 && alternatives[0]) current = alternatives[0];
    else return current;
  }
  return current;
}

function lookUp(reference: string, root: Schema): Schema {
  let found: unknown = root;
  for (const name of reference.replace(/^#\//, '').split('/')) {
    found = (found as Record<string, unknown> | undefined)?.[name.replaceAll('~1', '/').replaceAll('~0', '~')];
  }
  return (found as Schema | undefined) ?? {};
}

/** The parameters that filled-in fields stand for; throws where a value cannot be read. */
export function valueOf(fields: readonly Field[], filled: ReadonlyMap<string, string>): Record<string, unknown> {
  const value: Record<string, unknown> = {};
  for (const field of fields) {
    const typed = filled.get(field.path)?.trim() ?? '';
    if (typed) put(value, field.path.split('.'), read(field, typed));
  }
  return value;
}

function read(field: Field, typed: string): unknown {
  if (field.kind === 'boolean') return typed === 'true';
  if (field.kind === 'number') return Number(typed);
  if (field.kind !== 'json') return typed;
  try {
    return JSON.parse(typed);
  } catch (error) {
    throw new Error(`${field.path}: ${(error as Error).message}`);
  }
}

function put(into: Record<string, unknown>, path: string[], value: unknown): void {
  const [name, ...rest] = path;
  if (name === undefined) return;
  if (rest.length === 0) {
    into[name] = value;
    return;
  }
  const inner = (into[name] ??= {}) as Record<string, unknown>;
  put(inner, rest, value);
}
