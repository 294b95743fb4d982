/** Calls as a person would make them in a shell; the token stays a variable. */

export function curlRpc(root: string, method: string, params: unknown, extensions: readonly string[] = []): string {
  const body = JSON.stringify({ jsonrpc: '2.0', id: 1, method, params });
  const lines = [
    `curl -sN ${quoted(root)}`,
    `-H "Authorization: Bearer $TOKEN"`,
    `-H 'A2A-Version: 1.0'`,
    ...(extensions.length ? [`-H ${quoted(`A2A-Extensions: ${extensions.join(',')}`)}`] : []),
    `-H 'Content-Type: application/json'`,
    `-d ${quoted(body)}`,
  ];
  return lines.join(' \\\n  ');
}

function quoted(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}
