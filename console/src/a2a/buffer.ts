/** The one part of Node's Buffer that the SDK needs in a browser: bytes to base64 and back. */

class Bytes extends Uint8Array {
  override toString(encoding?: string): string {
    if (encoding !== 'base64') return new TextDecoder().decode(this);
    let binary = '';
    for (let at = 0; at < this.length; at += 0x8000) {
      binary += String.fromCharCode(...this.subarray(at, at + 0x8000));
    }
    return btoa(binary);
  }
}

function from(source: string | ArrayLike<number>, encoding?: string): Bytes {
  if (typeof source !== 'string') return Bytes.from(source) as Bytes;
  if (encoding !== 'base64') return Bytes.from(new TextEncoder().encode(source)) as Bytes;
  const normal = source.replaceAll('-', '+').replaceAll('_', '/');
  return Bytes.from(atob(normal), (each) => each.charCodeAt(0)) as Bytes;
}

const shim = { from, isBuffer: (value: unknown) => value instanceof Bytes, alloc: (size: number) => new Bytes(size) };
(globalThis as Record<string, unknown>).Buffer ??= shim;

export const bytesOf = (source: ArrayLike<number>): Bytes => from(source);
