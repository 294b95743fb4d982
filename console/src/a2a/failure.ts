/** What went wrong with a call, in one form, whichever layer noticed it. */

export class Failure extends Error {
  constructor(
    message: string,
    /** `login`: the token is missing, wrong or expired; `network`: nobody answered; `refused`: the service said no. */
    readonly kind: 'login' | 'network' | 'refused',
    readonly code = 0,
    readonly reason = '',
  ) {
    super(message);
  }
}

const LOGIN_CODES = new Set([-32057, 401]);

/** A JSON-RPC error object. */
export interface RpcError {
  code: number;
  message: string;
  data?: unknown;
}

export function refused(error: RpcError): Failure {
  const kind = LOGIN_CODES.has(error.code) ? 'login' : 'refused';
  return new Failure(error.message, kind, error.code, reasonOf(error.data));
}

function reasonOf(data: unknown): string {
  const details = Array.isArray(data) ? data : [data];
  for (const each of details) {
    const reason = (each as { reason?: unknown } | undefined)?.reason;
    if (typeof reason === 'string') return reason;
  }
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
  return refused({ code, message: it?.message ?? String(error), data: { reason: it?.reason } });
}
