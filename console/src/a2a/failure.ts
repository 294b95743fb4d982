/** What went wrong with a call, in one form, whichever layer noticed it. */

export class Failure extends Error {
  constructor(
    message: string,
    /** `login`: the token is missing, wrong or expired; `network`: nobody answered; `refused`: the service said no. */
    readonly kind: 'login' | 'network' | 'refused',
    readonly code = 0,
    readonly reason = '',
    /** What in the request was wrong, as paths such as `message.parts`. */
    readonly fields: readonly string[] = [],
  ) {
    super(message);
  }
}

const LOGIN_CODES = new Set([-32057, 401]);
export const FORBIDDEN = -32056; // the token lacks a scope
export const NO_PUSH = -32003; // the service sends no push notifications

/** A JSON-RPC error object. */
export interface RpcError {
  code: number;
  message: string;
  data?: unknown;
}

export function refused(error: RpcError): Failure {
  const kind = LOGIN_CODES.has(error.code) ? 'login' : 'refused';
  return new Failure(error.message, kind, error.code, reasonOf(error.data), fieldsOf(error.data));
}

interface Detail {
  reason?: unknown;
  fieldViolations?: { field: string }[];
}

const detailsOf = (data: unknown): Detail[] => (Array.isArray(data) ? data : [data]).filter((each) => each instanceof Object);

const fieldsOf = (data: unknown): string[] => detailsOf(data).flatMap((each) => each.fieldViolations?.map(({ field }) => field) ?? []);

function reasonOf(data: unknown): string {
  for (const { reason } of detailsOf(data)) if (typeof reason === 'string') return reason;
  return '';
}

interface SdkError {
  name: string;
  message: string;
  envelopeCode?: number;
  statusCode?: number;
  reason?: string;
  data?: unknown;
}

export function failureOf(error: unknown): Failure {
  if (error instanceof Failure) return error;
  const it = error as SdkError;
  if (it?.name === 'AbortError') return new Failure('stopped', 'network');
  if (error instanceof TypeError) return new Failure(it.message, 'network');
  const code = it?.envelopeCode ?? it?.statusCode ?? 0;
  return refused({ code, message: it?.message ?? String(error), data: [{ reason: it?.reason }, ...detailsOf(it?.data)] });
}
